"""Moves the scale factors around a GELU or SiLU into the weights in front of it and behind it.

``sigma Gelu(x / sigma)`` between two linear layers is a plain Gelu: the first layer's weights and bias are divided by
sigma, the second's weights multiplied by it, for one sigma a channel too. Likewise ``Swish(x) = SiLU(beta x) / beta``.
A factor that is a power of two changes no digit of a weight. Any other rounds each weight once more, an error as large
as that of the product it takes the place of; only the policy ``fast`` does that.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from lit_gelu.export.lowering.lowering_table import MARKER_DOMAIN, BoundActivation, bound

_MATRIX = 2


def fold(model: ir.Model, marked: dict[str, BoundActivation], *, exact: bool) -> dict[str, str]:
    """Fold what can be folded, in ``model`` and ``marked``; say by site which factors went where."""
    # Only where the marker's input has no other reader, both neighbours are a Gemm, a MatMul (with the Add of its bias)
    # or a Conv, and their weights are initializers that nothing else reads. If exact, only powers of two.
    folded: dict[str, str] = {}
    calls: dict[str, list[ir.Node]] = {}
    for node in model.graph:
        if node.domain == MARKER_DOMAIN:
            calls.setdefault(node.attributes["site"].as_string(), []).append(node)
    for site, nodes in calls.items():
        plain, scale, dim = _plain(marked[site])
        if plain is None or scale is None or len(nodes) != 1 or (exact and not np.all(np.frexp(scale)[0] == 0.5)):
            continue
        before, after = layer_before(nodes[0]), _layer_after(nodes[0])
        if before is None or after is None or not _fits(before, after, scale, dim, nodes[0]):
            continue
        before.divide(scale)
        after.multiply(scale)
        marked[site] = plain
        folded[site] = f"1/{_text(scale)} in {before.names}, {_text(scale)} in {after.names}"
    return folded


@dataclass(frozen=True)
class ChannelParameters:
    """The parameters of a layer that carry one entry, or one slice, a channel, each with the axis of its channels."""

    parameters: tuple[tuple[ir.Value, int], ...]
    node: ir.Node  # makes its output

    @property
    def names(self) -> str:
        """The parameters' names."""
        return " and ".join(str(value.name) for value, _ in self.parameters)

    @property
    def dim(self) -> int:
        """Which dimension of its inputs and outputs the channels are."""
        return 1 if self.node.op_type == "Conv" else -1

    @property
    def channels(self) -> int:
        """How many channels it has."""
        value, axis = self.parameters[0]
        return int(array_of(value).shape[axis])

    def divide(self, scale: np.ndarray) -> None:
        """Divide the parameters by one number a channel, or by one number."""
        self.multiply(1.0 / scale)

    def multiply(self, scale: np.ndarray) -> None:
        """Multiply the parameters by one number a channel, or by one number."""
        for value, axis in self.parameters:
            array = array_of(value)
            shape = [1] * array.ndim
            if scale.size > 1:
                shape[axis] = -1
            product = (array.astype(np.float64) * scale.reshape(shape if scale.size > 1 else ())).astype(array.dtype)
            value.const_value = ir.tensor(product, name=value.name)


def _plain(activation: BoundActivation) -> tuple[BoundActivation | None, np.ndarray | None, int]:
    """Return f and s of ``s f(x / s)``: s is one positive number, or one a channel, of which dimension is said too."""
    scaled = getattr(activation.recipes, "scaled", None)
    if scaled is None:
        return None, None, 0
    exact = {  # learned ones are float32 arrays
        name: value.astype(np.float64) if isinstance(value, np.ndarray) else value
        for name, value in activation.arguments.items()
    }
    scale = scaled.scale(exact)
    if scale is None:
        return None, None, 0
    scale = np.asarray(scale, dtype=np.float64)
    if scale.ndim > 1 and max(scale.shape) != scale.size:
        return None, None, 0
    dim = int(activation.arguments.get("channel_dim", 1))
    if scale.ndim > 1:
        dim = int(np.argmax(scale.shape)) - scale.ndim
    return bound(scaled.name, scaled.arguments), scale.reshape(-1) if scale.size > 1 else scale.reshape(()), dim


def _fits(before: ChannelParameters, after: ChannelParameters, scale: np.ndarray, dim: int, marker: ir.Node) -> bool:
    """Return whether a scale has one entry a channel of both layers, whose channels are the same dimension."""
    if scale.size == 1:
        return True
    x = marker.inputs[0]
    if x is None or x.shape is None or not before.channels == after.channels == scale.size:
        return False
    rank = len(x.shape)
    return before.dim % rank == after.dim % rank == dim % rank


def layer_before(marker: ir.Node) -> ChannelParameters | None:
    """Return the layer that makes a marker's input and nothing else."""
    x = marker.inputs[0]
    node = None if x is None else x.producer()
    if x is None or node is None or len(list(x.uses())) != 1 or x.is_graph_output():
        return None
    if node.op_type == "Add":
        bias = next((value for value in node.inputs if value is not None and _is_own(value)), None)
        product = next((value for value in node.inputs if value is not None and value is not bias), None)
        matrix = None if product is None else product.producer()
        if bias is None or product is None or matrix is None or matrix.op_type != "MatMul":
            return None
        if len(list(product.uses())) != 1 or product.is_graph_output() or array_of(bias).ndim != 1:
            return None
        weight = matrix.inputs[1]
        if weight is None or not _is_own(weight) or array_of(weight).ndim != _MATRIX:
            return None
        return ChannelParameters(((weight, 1), (bias, 0)), node)
    return _parameters(node, outputs=True)


def _layer_after(marker: ir.Node) -> ChannelParameters | None:
    """Return the layer that is the only reader of a marker's output."""
    y = marker.outputs[0]
    uses = list(y.uses())
    if len(uses) != 1 or y.is_graph_output() or uses[0].idx != 0:
        return None
    return _parameters(uses[0].node, outputs=False)


def _parameters(node: ir.Node, *, outputs: bool) -> ChannelParameters | None:
    """Return a Gemm's, MatMul's or Conv's parameters along its outputs, or its weight along its inputs."""
    if node.op_type not in {"Gemm", "MatMul", "Conv"} or node.domain not in {"", "ai.onnx"}:
        return None
    weight = node.inputs[1]
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if weight is None or not _is_own(weight) or (bias is not None and not _is_own(bias)):
        return None
    if node.op_type == "Conv":
        group = node.attributes["group"].as_int() if "group" in node.attributes else 1
        if group != 1 and not outputs:
            return None
        axis = 0 if outputs else 1
    elif array_of(weight).ndim != _MATRIX:
        return None
    else:
        transposed = "transB" in node.attributes and node.attributes["transB"].as_int() == 1
        axis = int(outputs) ^ int(transposed)
        if "transA" in node.attributes and node.attributes["transA"].as_int() == 1:
            return None
    parameters = [(weight, axis)]
    if outputs and bias is not None:
        parameters.append((bias, array_of(bias).ndim - 1))
    return ChannelParameters(tuple(parameters), node)


def _is_own(value: ir.Value) -> bool:
    """Return whether a value is an initializer with one reader."""
    return value.const_value is not None and value.producer() is None and len(list(value.uses())) == 1


def array_of(value: ir.Value) -> np.ndarray:
    """Return an initializer's values."""
    if value.const_value is None:
        raise ValueError(f"{value.name} is no initializer")
    array: np.ndarray = value.const_value.numpy()
    return array


def _text(scale: np.ndarray) -> str:
    """Return a scale as text."""
    return f"{float(scale):.6g}" if scale.size == 1 else f"{scale.size} scales"
