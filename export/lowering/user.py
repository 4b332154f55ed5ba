"""Activations that a user registered with operators of their own: an onnxscript function, or a recipe.

``registry.register("my_gate", onnx=...)`` takes either. Without it torch decomposes the activation, as it does anything
else.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from lit_gelu.activations.onnx_recipes import OnnxCases, OnnxRecipes
from lit_gelu.export.errors import ExportOptionError
from lit_gelu.export.recipe import Argument, RecipeBuilder


def user_row(name: str, onnx: Any, arguments: Mapping[str, Any]) -> OnnxRecipes | ir.Function | None:
    """Return what an activation's registration says of its operators.

    Args:
        name: The activation.
        onnx: A recipe as `lit_gelu.activations.onnx_recipes` has it, an `OnnxRecipes` or `OnnxCases` of them, or an
            onnxscript function of one tensor, whose attributes are arguments of the activation.
        arguments: The activation's arguments.

    Returns:
        The recipes, or the function; ``None`` if these arguments are no case of it.

    Raises:
        ExportOptionError: If it is none of these, a recipe cannot be read, or the function does not fit the activation.

    Example:
        >>> user_row("twice", "Add(x, x)", {}).native
        'Add(x, x)'
    """
    if isinstance(onnx, OnnxCases):
        case = onnx.case(arguments)
        if case is not None and case not in onnx.recipes:
            raise ExportOptionError(
                f"{name!r} was registered with recipes for {', '.join(map(repr, onnx.recipes))}, and its case is "
                f"{case!r}. Return one of these, or None, which leaves it to torch's exporter."
            )
        onnx = None if case is None else onnx.recipes[case]
    if onnx is None:
        return None
    recipes = OnnxRecipes(native=onnx) if isinstance(onnx, str) else onnx
    if isinstance(recipes, OnnxRecipes):
        _require_readable(name, recipes, arguments)
        return recipes
    if not hasattr(onnx, "to_function_proto"):
        raise ExportOptionError(
            f"{name!r} was registered with onnx={onnx!r}. Accepted: an onnxscript function (@onnxscript.script()) of "
            "one tensor, a recipe as text, such as 'Mul(x, Sigmoid(x))', OnnxRecipes or OnnxCases."
        )
    function: ir.Function = ir.from_proto(onnx.to_function_proto())
    unknown = [attribute for attribute in function.attributes if attribute not in arguments]
    if len(function.inputs) != 1 or len(function.outputs) != 1 or unknown:
        raise ExportOptionError(
            f"the onnxscript function of {name!r} takes {len(function.inputs)} tensors and gives "
            f"{len(function.outputs)}"
            + (f", and the activation has no argument {', '.join(map(repr, unknown))}" if unknown else "")
            + ". Accepted: one tensor in, one out, and attributes named as the activation's arguments."
        )
    return function


def _require_readable(name: str, recipes: OnnxRecipes, arguments: Mapping[str, Any]) -> None:
    """Refuse recipes that cannot be built."""
    given = [recipe for recipe in vars(recipes).values() if recipe is not None]
    for recipe in given:
        problem = _problem(recipe, arguments)
        if problem:
            raise ExportOptionError(
                f"the recipe that {name!r} was registered with cannot be read: {recipe!r} ({problem}). Accepted: "
                "operators within each other, such as 'Mul(x, Sigmoid(x))'; see docs/lowering.md."
            )
    if recipes.native is None and recipes.primitives is None:
        raise ExportOptionError(
            f"{name!r} was registered without a recipe in standard operators. Give OnnxRecipes(native=...) or "
            "OnnxRecipes(primitives=...)."
        )


def _problem(recipe: str, arguments: Mapping[str, Any]) -> str:
    """Return why a recipe cannot be built; nothing if it can."""
    builder = RecipeBuilder(ir.Value(name="x"), arguments, lambda _, hint: ir.Value(name=hint))
    try:
        builder.build(recipe)
    except KeyError as error:
        return f"the activation has no argument {error}"
    except (SyntaxError, TypeError, ValueError) as error:
        return str(error)
    return "" if builder.nodes else "it has no operator"


def inlined(
    function: ir.Function, x: ir.Value, arguments: Mapping[str, Argument | str]
) -> tuple[list[ir.Node], ir.Value]:
    """Return the nodes of an onnxscript function for one input.

    Args:
        function: The function.
        x: Its input.
        arguments: Values of its attributes.

    Returns:
        The nodes in order, and the value that the function returns.

    Raises:
        ValueError: If the function returns an input that was left out.
    """
    values: dict[ir.Value | None, ir.Value | None] = {None: None, function.inputs[0]: x}
    nodes = []
    for node in function:
        attributes = [_attribute(attribute, arguments) for attribute in node.attributes.values()]
        copy = ir.Node(
            node.domain, node.op_type, [values[v] for v in node.inputs], attributes, num_outputs=len(node.outputs)
        )
        values.update(zip(node.outputs, copy.outputs, strict=True))
        nodes.append(copy)
    result = values[function.outputs[0]]
    if result is None:
        raise ValueError("an onnxscript function returns nothing")
    return nodes, result


def _attribute(attribute: ir.Attr, arguments: Mapping[str, Argument | str]) -> ir.Attr:
    """Return an attribute with the activation's argument in the place of a reference to it."""
    if not attribute.is_ref():
        return attribute
    value = arguments[str(attribute.ref_attr_name)]
    if isinstance(value, str):
        return ir.AttrString(attribute.name, value)
    if attribute.type == ir.AttributeType.INT:
        return ir.AttrInt64(attribute.name, int(np.asarray(value).item()))
    return ir.AttrFloat32(attribute.name, float(np.asarray(value).item()))
