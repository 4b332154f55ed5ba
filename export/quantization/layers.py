"""Which nodes of a file are quantised, and what they are called."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf, prod

import onnx
from onnx import numpy_helper

from lit_gelu.export.errors import ExportOptionError
from lit_gelu.export.parity.subgraph import node_label, site_of

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators with weights: what is worth 8 bits."""

PASSING = ("MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Relu", "Clip")
"""Operators that choose among numbers or move them: behind an int8 value they work on int8 without a further error."""

REPLACED = frozenset({"Relu", "Clip"})
"""Activations whose work a quantised range does: what is below its least number becomes that number.

A range holds 0 always. So it does not do the work of a ``Clip`` whose bounds leave 0 out, nor of one whose input is an
output of the file too: there that input has to keep what the activation takes away. A range of 0 alone is stored as 0
to 255. It does the work of a ``Relu``, but not of a ``Clip`` with an upper bound.
"""

# Where `lit_gelu.export.inputs.FlatModule` keeps it, and what its buffers' names begin with.
_PREPROCESSING = "preprocessing."


@dataclass(frozen=True)
class NetLayer:
    """A layer of the net: a node with weights."""

    # The module's fully qualified name; the node's where the file does not say of which module the weights are.
    name: str
    node: str
    operator: str
    site: str | None = None  # the activation that takes its result, if one does

    def fits(self, patterns: Collection[str]) -> bool:
        """Return whether a pattern fits the layer's, the node's or the activation's name, or the operator."""
        names = [self.name, self.node, self.operator, *([] if self.site is None else [self.site])]
        return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def find_layers(model: onnx.ModelProto) -> list[NetLayer]:
    """Find the nodes whose weights are constants of the file, but for its preprocessing, in the graph's order."""
    constants = {tensor.name for tensor in model.graph.initializer}
    users: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for value in node.input:
            users.setdefault(value, []).append(node)
    return [
        _layer(node, constants, users)
        for node in model.graph.node
        if node.op_type in WEIGHTED
        and not node.domain
        and node.input[1] in constants
        and not node.input[1].startswith(_PREPROCESSING)
    ]


def _layer(node: onnx.NodeProto, constants: Collection[str], users: Mapping[str, Sequence[onnx.NodeProto]]) -> NetLayer:
    """Describe one node."""
    following = users.get(node.output[0], [])
    bias = [value for user in following if user.op_type == "Add" for value in user.input if value in constants]
    behind = [*following, *(user for add in following if add.op_type == "Add" for user in users.get(add.output[0], []))]
    site = next((site for user in behind if (site := site_of(user)) is not None), None)
    owned = (value.rpartition(".") for value in [node.input[1], *bias])  # a transposed weight has lost its name
    name = next((owner for owner, _, kind in owned if owner and kind in {"weight", "bias"}), node.name)
    return NetLayer(name, node.name, node.op_type, site)


def chosen(layers: Sequence[NetLayer], float_layers: Sequence[str]) -> list[NetLayer]:
    """Return the layers that are quantised."""
    names = ", ".join(layer.name for layer in layers)
    if not layers:
        raise ExportOptionError(
            f"The file has no operator that is quantised: {', '.join(WEIGHTED)} with constant weights. Use it as it is."
        )
    unused = [pattern for pattern in float_layers if not any(layer.fits([pattern]) for layer in layers)]
    if unused:
        raise ExportOptionError(f"float_layers: {unused[0]!r} fits no layer. The file has: {names}.")
    left = [layer for layer in layers if not layer.fits(float_layers)]
    if not left:
        raise ExportOptionError(f"float_layers leaves all layers in float32, so there is nothing to quantise: {names}.")
    return left


def passing_nodes(model: onnx.ModelProto, zeros: Collection[str] = ()) -> list[str]:
    """Return the nodes that may work on int8 values; of activations only those that a range does."""
    # zeros: the values whose range is 0 alone.
    numbers = _numbers(model)
    outputs = {value.name for value in model.graph.output}
    several = {site_of(node) for node in model.graph.node if node.op_type not in REPLACED}
    return [
        node.name
        for node in model.graph.node
        if node.op_type in PASSING
        and not node.domain
        and (site_of(node) is None or (node.op_type in REPLACED and site_of(node) not in several))
        and not (node.op_type in REPLACED and (node.input[0] in outputs or _leaves_out_0(node, numbers)))
        and not (node.op_type == "Clip" and any(node.input[2:]) and node.output[0] in zeros)
    ]


def _numbers(model: onnx.ModelProto) -> dict[str, float]:
    """Return the constants of the file that are one number."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    written = (node for node in model.graph.node if node.op_type == "Constant" and node.attribute[0].HasField("t"))
    tensors.update((node.output[0], node.attribute[0].t) for node in written)
    return {name: numpy_helper.to_array(tensor).item() for name, tensor in tensors.items() if prod(tensor.dims) == 1}


def _leaves_out_0(node: onnx.NodeProto, numbers: Mapping[str, float]) -> bool:
    """Return whether 0 may be outside the bounds of a Clip; a bound that is no constant may be anything."""
    if node.op_type != "Clip":
        return False
    low, high = ([*node.input[1:], "", ""])[:2]
    least, largest = numbers.get(low, inf) if low else -inf, numbers.get(high, -inf) if high else inf
    return not least <= 0.0 <= largest


def activation_labels(model: onnx.ModelProto) -> dict[str, int]:
    """Count the nodes that compute activations by label, such as ``Gelu(tanh)``."""
    nodes = (node for node in model.graph.node if site_of(node) is not None or "Gelu" in node.op_type)
    return dict(Counter(node_label(node) for node in nodes))
