"""Small things that go wrong with an exported file, as changes of its graph; the table of verdicts is made of them."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper, numpy_helper

Change = Callable[[onnx.ModelProto], None]


def constant(name: str, edit: Callable[[np.ndarray], np.ndarray | None]) -> Change:
    """Edit a constant; ``edit`` changes it in place or returns another."""

    def change(model: onnx.ModelProto) -> None:
        (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == name]
        array = numpy_helper.to_array(tensor).copy()
        edited = edit(array)
        tensor.CopyFrom(numpy_helper.from_array(array if edited is None else edited.astype(array.dtype), name))

    return change


def plus(name: str, index: object, amount: float) -> Change:
    def edit(array: np.ndarray) -> None:
        array[index] += np.asarray(amount, array.dtype)

    return constant(name, edit)


def times(name: str, index: object, factor: float) -> Change:
    def edit(array: np.ndarray) -> None:
        array[index] = array[index] * factor

    return constant(name, edit)


def put(name: str, index: object, value: float) -> Change:
    def edit(array: np.ndarray) -> None:
        array[index] = value

    return constant(name, edit)


def swapped(name: str, first: int, second: int) -> Change:
    def edit(array: np.ndarray) -> None:
        array[[first, second]] = array[[second, first]]

    return constant(name, edit)


def nodes(operator: str, edit: Callable[[onnx.NodeProto], None], only: int | None = None) -> Change:
    """Edit the nodes of an operator, all or one of them."""

    def change(model: onnx.ModelProto) -> None:
        matches = [node for node in model.graph.node if node.op_type == operator]
        for node in matches if only is None else [matches[only]]:
            edit(node)

    return change


def attribute(operator: str, name: str, value: object, only: int | None = None) -> Change:
    def edit(node: onnx.NodeProto) -> None:
        kept = [entry for entry in node.attribute if entry.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])

    return nodes(operator, edit, only)


def operator(old: str, new: str, only: int | None = None, **attributes: object) -> Change:
    def edit(node: onnx.NodeProto) -> None:
        node.op_type = new
        del node.attribute[:]
        node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())

    return nodes(old, edit, only)


def behind(value: str, name: str, *others: str, **attributes: object) -> Change:
    """Put an operator behind a value: whoever read the value reads what the operator makes of it."""

    def change(model: onnx.ModelProto) -> None:
        place = next(i for i, node in enumerate(model.graph.node) if value in node.output)
        maker, before = model.graph.node[place], f"{value}.{name}"
        maker.output[list(maker.output).index(value)] = before
        model.graph.node.insert(place + 1, helper.make_node(name, [before, *others], [value], **attributes))

    return change


def added(name: str, array: np.ndarray) -> Change:
    return lambda model: model.graph.initializer.append(numpy_helper.from_array(array, name))


def both(*changes: Change) -> Change:
    def change(model: onnx.ModelProto) -> None:
        for one in changes:
            one(model)

    return change


def read_instead(operator_type: str, place: int, name: str, only: int) -> Change:
    def edit(node: onnx.NodeProto) -> None:
        node.input[place] = name

    return nodes(operator_type, edit, only)


def inputs_exchanged(operator_type: str, first: int, second: int) -> Change:
    def edit(node: onnx.NodeProto) -> None:
        node.input[first], node.input[second] = node.input[second], node.input[first]

    return nodes(operator_type, edit, 0)


def metadata(key: str, edit: Callable[[str], str]) -> Change:
    def change(model: onnx.ModelProto) -> None:
        (entry,) = [entry for entry in model.metadata_props if entry.key == f"lit_gelu.{key}"]
        entry.value = edit(entry.value)

    return change


def sites(**values: object) -> Change:
    """Change what the record says of every activation."""
    return metadata("sites", lambda text: json.dumps([{**row, **values} for row in json.loads(text)]))


def renamed(old: str, new: str) -> Change:
    def change(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [new if name == old else name for name in names]
        for value in model.graph.output:
            value.name = new if value.name == old else value.name

    return change


def cast(output: str, element: int) -> Change:
    """Give an output another type."""

    def change(model: onnx.ModelProto) -> None:
        behind(output, "Cast", to=element)(model)
        (value,) = [value for value in model.graph.output if value.name == output]
        value.type.tensor_type.elem_type = element

    return change


def outputs_in_other_order(model: onnx.ModelProto) -> None:
    values = list(model.graph.output)[::-1]
    del model.graph.output[:]
    model.graph.output.extend(values)


def without_casts(model: onnx.ModelProto) -> None:
    """Let every activation compute in 16 bit."""
    taken = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Cast"}
    kept = [node for node in model.graph.node if node.op_type != "Cast"]
    for node in kept:
        node.input[:] = [taken.get(name, name) for name in node.input]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    del model.graph.value_info[:]


def like_bfloat16(array: np.ndarray) -> np.ndarray:
    """Keep eight bits of each number."""
    mantissa, exponent = np.frexp(array.astype(np.float64))
    return np.ldexp(np.round(mantissa * 2**8) / 2**8, exponent)


def exact_and_recorded_so(model: onnx.ModelProto) -> None:
    """Make every GELU exact, and change the record with it."""
    attribute("Gelu", "approximate", "none")(model)
    recipe = "Gelu(x, approximate='none')"
    region = "fp32: " if any(node.op_type == "Cast" for node in model.graph.node) else ""
    sites(spec="gelu", row="gelu(approximate='none')", recipe=region + recipe)(model)


def read_by(operator_type: str, only: int, place: int, edit: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Edit the constant that one node of an operator reads."""

    def change(model: onnx.ModelProto) -> None:
        node = [node for node in model.graph.node if node.op_type == operator_type][only]
        constant(node.input[place], edit)(model)

    return change


def from_before(value: str, *steps: tuple[str, tuple[str, ...], str, dict[str, object]]) -> Change:
    """Compute a value anew, from what it was: steps are operator, inputs ("x" is what it was), output ("y" is new)."""

    def change(model: onnx.ModelProto) -> None:
        place = next(i for i, node in enumerate(model.graph.node) if value in node.output)
        outputs = model.graph.node[place].output
        names = {"x": f"{value}.before", "y": value}
        outputs[list(outputs).index(value)] = names["x"]
        for i, (operator_type, inputs, output, attributes) in enumerate(steps):
            fed = [names.get(name, name) for name in inputs]
            entry = helper.make_node(operator_type, fed, [names.get(output, output)], name=f"planted{i}", **attributes)
            model.graph.node.insert(place + 1 + i, entry)

    return change
