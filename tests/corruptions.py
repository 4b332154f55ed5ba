"""The table of corrupted files: small things that go wrong with an export, and whether the proof must see them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Change = Callable[[onnx.ModelProto], None]


@dataclass(frozen=True)
class Corruption:
    """One thing that goes wrong.

    Args:
        name: What it is.
        file: Which of the six files.
        change: Does it, in place.
        caught: Whether the proof must see it. What it need not see must do no harm beyond the limit that it states.
    """

    name: str
    file: str
    change: Change
    caught: bool = True


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
        found = [node for node in model.graph.node if node.op_type == operator]
        for node in found if only is None else [found[only]]:
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


HIDDEN, OUTPUT = "hidden.0.linear", "output"
ZEROTH = added("zeroth", np.zeros((), np.float32))

MNIST32 = [
    ("the first GELU is exact", attribute("Gelu", "approximate", "none", 0)),
    ("every GELU is exact, and the record says so", exact_and_recorded_so),
    ("a GELU is a ReLU", operator("Gelu", "Relu", 1)),
    ("every GELU is a ReLU, and the record's recipe with it", both(
        operator("Gelu", "Relu"), sites(recipe="Relu(x)", operators=["Relu"]))),
    ("a bias is off by 1e-2", plus(f"{HIDDEN}.bias", 3, 1e-2)),
    ("a bias is off by 1e-3", plus(f"{HIDDEN}.bias", 3, 1e-3)),
    ("rows of the last layer are swapped", swapped(f"{OUTPUT}.weight", 2, 7)),
    ("rows of a hidden layer are swapped", swapped(f"{HIDDEN}.weight", 0, 1)),
    ("a column of the first layer is zeroed", put(f"{HIDDEN}.weight", (slice(None), 400), 0)),
    ("a row of the last layer is zeroed", put(f"{OUTPUT}.weight", 4, 0)),
    ("a weight is NaN", put(f"{OUTPUT}.weight", (0, 0), np.nan)),
    ("a weight is infinite", put(f"{HIDDEN}.weight", (0, 0), np.inf)),
    ("the last product is 0.1 % too large", attribute("Gemm", "alpha", 1.001, 2)),
    ("the bias counts twice", attribute("Gemm", "beta", 2.0, 0)),
    ("the record says fp16", metadata("dtype", lambda _: "fp16")),
    ("the record has no sites", metadata("sites", lambda _: "[]")),
    ("the record has one site less", metadata("sites", lambda text: json.dumps(json.loads(text)[1:]))),
    ("the record says exact", metadata("approximate", lambda _: "none")),
    ("the output has another name", renamed("output", "scores")),
    ("the output is float64", cast("output", TensorProto.DOUBLE)),
]  # fmt: skip
MNIST16 = [
    ("every GELU is exact", attribute("Gelu", "approximate", "none")),
    ("every GELU is exact, and the record says so", exact_and_recorded_so),
    ("activations compute in 16 bit", without_casts),
    ("a bias is off by 1e-2", plus(f"{HIDDEN}.bias", 3, 1e-2)),
    ("rows of the last layer are swapped", swapped(f"{OUTPUT}.weight", 2, 7)),
    ("a column of the last layer is zeroed", put(f"{OUTPUT}.weight", (slice(None), 9), 0)),
    ("a weight is NaN", put(f"{OUTPUT}.weight", (0, 0), np.nan)),
    ("the last layer's weights have eight bits", constant(f"{OUTPUT}.weight", like_bfloat16)),
    ("the record says float32 inputs and outputs", metadata("io_dtype", lambda _: "fp32")),
    ("the output is float32", cast("output", TensorProto.FLOAT)),
]
TOKENS = [
    ("the mask is ignored", both(ZEROTH, behind("_to_copy", "Pow", "zeroth"))),
    ("the mask is inverted", both(
        added("one", np.ones((), np.float32)), behind("_to_copy", "Neg"), behind("_to_copy", "Add", "one"))),
    ("lengths are those without a mask", both(added("four", np.full((1, 1), 4, np.float32)),
                                              read_instead("Div", 1, "four", 0))),
    ("half of the embedding is zeroed", put("words.weight", slice(20, None), 0)),
    ("a row of the embedding is zeroed", put("words.weight", 39, 0)),
    ("two rows of the embedding are swapped", swapped("words.weight", 7, 30)),
    ("two classes are swapped", swapped("head.weight", 0, 4)),
    ("a bias of the head is off by 1e-2", plus("head.bias", 1, 1e-2)),
    ("a bias of the head is off by 1e-3", plus("head.bias", 1, 1e-3)),
    ("the GELU is exact", attribute("Gelu", "approximate", "none")),
    ("outputs have each other's names", both(
        renamed("logits", "other"), renamed("hidden", "logits"), renamed("other", "hidden"), outputs_in_other_order)),
    ("two labels for five classes", metadata("labels", lambda _: '["one", "two"]')),
    ("the record has no sites", metadata("sites", lambda _: "[]")),
    ("an output is float64", cast("logits", TensorProto.DOUBLE)),
]  # fmt: skip
SCALES = [
    ("the small column is zeroed", put("head.weight", 2, 0)),
    ("the small column's bias is off by 1e-3", plus("head.bias", 2, 1e-3)),
    ("the small column is 0.1 % too large", times("sizes", 2, 1.001)),
    ("the middle column is 0.1 % too large", times("sizes", 1, 1.001)),
    ("a bias of the small output is off by 1e-2", plus("side.bias", 1, 1e-2)),
    ("a bias of the small output is off by 1e-3", plus("side.bias", 1, 1e-3)),
    ("the small column is NaN", put("head.bias", 2, np.nan)),
    ("the sigmoid of SiLU is a hard one", operator("Sigmoid", "HardSigmoid", alpha=0.25, beta=0.5)),
    ("SiLU is the square of a sigmoid", read_instead("Mul", 0, "val_2", 0)),
    ("outputs are in another order", outputs_in_other_order),
]
NORM = [
    ("epsilon is 1e-3", attribute("BatchNormalization", "epsilon", 1e-3)),
    ("a variance is 1 % too large", times("2.running_var", 2, 1.01)),
    ("a mean is off by 1e-3", plus("2.running_mean", 0, 1e-3)),
    ("mean and offset are exchanged", inputs_exchanged("BatchNormalization", 2, 3)),
    ("kernels are mirrored", constant("3.weight", lambda w: w[..., ::-1].copy())),
    ("channels are swapped", swapped("0.weight", 1, 2)),
    ("a bias is off by 1e-2", plus("3.bias", 1, 1e-2)),
    ("a bias is off by 1e-3", plus("3.bias", 1, 1e-3)),
    ("ELU's alpha is 0.99", attribute("Elu", "alpha", 0.99)),
    ("ELU is CELU, which is the same", operator("Elu", "Celu", alpha=1.0)),
    ("the GELU has its tanh form", attribute("Gelu", "approximate", "tanh")),
]
INT8 = [
    ("the GELU is a ReLU", operator("Gelu", "Relu")),
    ("the GELU has its tanh form", attribute("Gelu", "approximate", "tanh")),
    ("the GELU is no longer marked, and a ReLU", both(
        operator("Gelu", "Relu"), nodes("Relu", lambda node: node.ClearField("metadata_props")))),
    ("rows of the last layer are swapped", swapped("2.weight_quantized", 2, 5)),
    ("a row of the last layer is zeroed", put("2.weight_quantized", 4, 0)),
    ("a scale is NaN", put("2.weight_scale", 3, np.nan)),
    ("the input's zero point is off by 60", plus("input_zero_point", (), 60)),
    ("the record has no sites", metadata("sites", lambda _: "[]")),
]  # fmt: skip

HARMLESS = [
    ("mnist32", "a bias is off by 1e-7", plus(f"{HIDDEN}.bias", 3, 1e-7)),
    ("mnist32", "the last layer is 1e-6 too large", times(f"{OUTPUT}.weight", slice(None), 1 + 1e-6)),
    ("mnist32", "the document says something else", lambda model: setattr(model, "producer_name", "another")),
    ("mnist16", "a bias is off by 1e-3", plus(f"{HIDDEN}.bias", 3, 1e-3)),
    ("tokens", "labels are in another order", metadata("labels", lambda text: json.dumps(json.loads(text)[::-1]))),
    ("scales", "a bias of the large column is off by 1e-6", plus("head.bias", 0, 1e-6)),
    ("scales", "the small column is 1e-6 too large", times("sizes", 2, 1 + 1e-6)),
    ("norm", "epsilon is 1.1e-5", attribute("BatchNormalization", "epsilon", 1.1e-5)),
    ("norm", "the momentum, which only training reads, is 0.5", attribute("BatchNormalization", "momentum", 0.5)),
    ("int8", "a column is 1 % too large", times("2.weight_scale", 3, 1.01)),
]

TABLE = (
    *(
        Corruption(name, file, change)
        for file, entries in (
            ("mnist32", MNIST32),
            ("mnist16", MNIST16),
            ("tokens", TOKENS),
            ("scales", SCALES),
            ("norm", NORM),
            ("int8", INT8),
        )
        for name, change in entries
    ),
    *(Corruption(name, file, change, caught=False) for file, name, change in HARMLESS),
)
