"""What an activation becomes in an ONNX file: recipes as text, which `lit_gelu.export` reads.

A recipe is written as the graph it stands for. ``Mul(x, Sigmoid(Mul(x, 1.702)))`` is three nodes: ``Mul``, ``Sigmoid``,
``Mul`` (inner nodes first). ``x`` is the activation's input; other lower-case names are the activation's arguments with
the values they have at export; numbers and names in capitals are constants, ``a * b`` of them one constant; keywords
are node attributes; ``name = ...;`` gives an intermediate result a name. Operators are standard ones unless they are
written ``microsoft.NAME``, which is the domain ``com.microsoft`` that only onnxruntime knows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Lowering = Literal["native", "primitives", "contrib"]
LOWERINGS: tuple[Lowering, ...] = ("native", "primitives", "contrib")

Arguments = Mapping[str, object]


@dataclass(frozen=True)
class OnnxSpelling:
    """A formula by which an activation is recognised in an exported graph where it was no module.

    Args:
        formula: Written as a recipe. The order of factors and operands, and where a constant is multiplied in, do not
            matter; a lower-case name other than ``x`` stands for whatever constant the graph has there, and is then
            the value of that argument.
        arguments: Further arguments that the formula means.
    """

    formula: str
    arguments: Arguments = field(default_factory=dict)


@dataclass(frozen=True)
class OnnxOperator:
    """A standard operator that is the activation by itself.

    Args:
        name: The operator, such as ``"Elu"``.
        attributes: By attribute: the argument that it is, and its default in ONNX.
    """

    name: str
    attributes: Mapping[str, tuple[str, float | str]] = field(default_factory=dict)


@dataclass(frozen=True)
class OnnxRecipes:
    """The recipes of one activation (of one case of it, where its arguments decide).

    Args:
        native: Recipe in standard operators, with the activation's own operator.
        primitives: Recipe in basic standard operators.
        contrib: Recipe with onnxruntime's fused operators.
        accurate: Recipe in standard operators without cancellation.
        policy: Which of them to take where, line by line: ``"ort-cpu fp16|bf16 strict": "fp32 accurate"`` says that on
            this target, in these dtypes, under this policy, the recipe ``accurate`` is taken, computed in float32. The
            first line that fits decides; ``*`` is any; a recipe may stand there itself. The lines of
            `lit_gelu.export.lowering.policy` follow these.
        absolute: Largest absolute error beside the last place, of float32 arithmetic within a 16-bit file under the
            policy ``strict``; ``None``: what `lit_gelu.export.lowering.policy` has for all.
        notes: What a user should know, by target and policy, such as ``"ort-cuda fast"``.
        spellings: Formulas by which it is recognised where it is no module.
        operator: The standard operator that it is by itself, recognised too.
    """

    native: str | None = None
    primitives: str | None = None
    contrib: str | None = None
    accurate: str | None = None
    policy: Mapping[str, str] = field(default_factory=dict)
    absolute: float | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    spellings: tuple[OnnxSpelling, ...] = ()
    operator: OnnxOperator | None = None


@dataclass(frozen=True)
class OnnxCases:
    """The recipes of an activation whose arguments decide which operators it becomes.

    Args:
        recipes: Recipes by case, such as ``"gelu(approximate='tanh')"``.
        case: From the arguments with the values they have now to the case, which may be one of another activation that
            is the same function; ``None`` leaves it to torch's exporter.
        operator: The standard operator that it is by itself, whose attributes say which case.
    """

    recipes: Mapping[str, OnnxRecipes]
    case: Callable[[Arguments], str | None]
    operator: OnnxOperator | None = None


def numbers(argument: object) -> list[float]:
    """Return the numbers that an argument holds."""
    values: list[Any] = argument.ravel().tolist() if hasattr(argument, "ravel") else [argument]
    return [float(value) for value in values]
