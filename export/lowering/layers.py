"""The bias of a linear layer in front of an activation, as a part of the activation's operator.

onnxruntime's CUDA provider's Gelu loads and stores one value at a time, its BiasGelu four: 86 and 37
instructions an element in float16 (read in onnxruntime 1.31.1's code for compute capability 9.0). Its Gemm writes the
bias over the whole output first, and adds the product to it. So a Gemm becomes a MatMul with a transposed weight. In
float16 BiasGelu rounds erf to float16 before it adds 1, Gelu does not. So under ``strict`` no float16 file has one, nor
may onnxruntime make one of an Add and a Gelu.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from lit_gelu.export.lowering.lowering_table import MARKER_DOMAIN, BoundActivation
from lit_gelu.export.lowering.policy import DTYPES, Choice, Target, with_bias
from lit_gelu.export.lowering.spellings import in_place_of

_MATRIX = 2


@dataclass(frozen=True)
class ChannelParameters:
    """The parameters of a layer that carry one entry, or one slice, a channel, each with the axis of its channels."""

    parameters: tuple[tuple[ir.Value, int], ...]
    node: ir.Node  # makes its output

    @property
    def channels(self) -> int:
        """How many channels it has."""
        value, axis = self.parameters[0]
        return int(array_of(value).shape[axis])


def hand_over_biases(
    model: ir.Model, activations: Mapping[str, BoundActivation], taken: Mapping[str, Choice], target: Target
) -> dict[str, Choice]:
    """Give markers the bias of the layer in front as a second input, in place; return these sites' choices."""
    markers_of_sites: dict[str, list[ir.Node]] = defaultdict(list)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.domain == MARKER_DOMAIN:
            markers_of_sites[node.attributes["site"].as_string()].append(node)
    changed = {}
    for site, markers in markers_of_sites.items():
        choice = with_bias(activations[site].recipes, taken[site], target)
        layers = [layer for marker in markers if (layer := _linear_with_bias(marker)) is not None]
        if choice is not None and len(layers) == len(markers):  # a site has one recipe for all its calls
            changed[site] = choice
            for marker, layer in zip(markers, layers, strict=True):
                _give_bias(marker, layer)
    return changed


def keep_biases_apart(model: ir.Model, taken: Mapping[str, Choice], target: Target) -> None:
    """Write biases in front of a Gelu so that onnxruntime fuses no two, in a float16 file that is to be as accurate."""
    # It does where the Add has an operand of one dimension. One of two, with a single row, gives the same sum.
    if target.runtime not in {"ort-cuda", "portable"}:
        return
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        site = node.attributes["site"].as_string() if node.domain == MARKER_DOMAIN else ""
        x = node.inputs[0] if site and "Gelu(" in taken[site].recipe and not taken[site].in_fp32 else None
        layer = None if x is None else x.producer()
        if layer is None or layer.op_type != "Add" or any(v is None or v.shape is None for v in layer.inputs):
            continue
        for i, bias in enumerate(layer.inputs):
            other = layer.inputs[1 - i]
            if bias is None or other is None or bias.const_value is None or bias.producer() is not None:
                continue
            if len(bias.shape or ()) == 1 < len(other.shape or ()):
                layer.replace_input_with(i, _as_row(bias, model.graph))


def _as_row(bias: ir.Value, graph: ir.Graph) -> ir.Value:
    """Return an initializer as one of a single row; all its readers in front of a Gelu share that."""
    name = f"lit_gelu.row.{bias.name}"
    if name not in graph.initializers:
        row = ir.Value(name=name, const_value=ir.tensor(array_of(bias)[None], name=name))
        row.dtype, row.shape = DTYPES["fp16"], ir.Shape([1, *(bias.shape or ())])
        graph.initializers[name] = row
    return graph.initializers[name]


def _linear_with_bias(marker: ir.Node) -> ChannelParameters | None:
    """Return the linear layer that alone makes a marker's input, with a bias for each channel."""
    layer = layer_before(marker)
    if layer is None or layer.node.graph is not marker.graph:
        return None
    factors = [layer.node.attributes[key].as_float() for key in ("alpha", "beta") if key in layer.node.attributes]
    biases = [array_of(value).shape for value, _ in layer.parameters[1:]]
    # torch takes a bias of zeros, as of a net that is not trained yet, out of a Gemm, whose new node has such a name.
    fits = biases == [(layer.channels,)] if biases else str(layer.node.name).startswith("node_Gemm")
    fits = fits and layer.node.op_type in {"Add", "Gemm"}
    return layer if fits and all(factor == 1.0 for factor in factors) else None


def _give_bias(marker: ir.Node, layer: ChannelParameters) -> None:
    node, ((weight, axis), *biases) = layer.node, layer.parameters
    bias = biases[0][0] if biases else _zeros(node, weight, layer.channels)
    if node.op_type == "Add":
        product = next(value for value in node.inputs if value is not bias)
    else:
        if axis == 0:
            array = np.ascontiguousarray(array_of(weight).T)
            weight.const_value, weight.shape = ir.tensor(array, name=weight.name), ir.Shape(array.shape)
        product = in_place_of(node, ir.node("MatMul", [node.inputs[0], weight], name=node.name))
    in_place_of(marker, ir.node(marker.op_type, [product, bias], marker.attributes, domain=marker.domain))


def _zeros(node: ir.Node, weight: ir.Value, channels: int) -> ir.Value:
    """Return a new bias of zeros of a weight's dtype."""
    name = f"lit_gelu.no_bias_{weight.name}"
    bias = ir.val(name, const_value=ir.tensor(np.zeros(channels, array_of(weight).dtype), name=name))
    if node.graph is not None:
        node.graph.initializers[name] = bias
    return bias


def layer_before(marker: ir.Node) -> ChannelParameters | None:
    """Return the layer that makes a marker's input and nothing else."""
    x = marker.inputs[0]
    node = None if x is None else x.producer()
    if x is None or node is None or len(list(x.uses())) != 1 or x.is_graph_output():
        return None
    if node.op_type == "Add":
        bias = next((value for value in node.inputs if value is not None and _is_constant(value)), None)
        product = next((value for value in node.inputs if value is not None and value is not bias), None)
        matrix = None if product is None else product.producer()
        if bias is None or product is None or matrix is None or matrix.op_type != "MatMul":
            return None
        if len(list(product.uses())) != 1 or product.is_graph_output() or array_of(bias).ndim != 1:
            return None
        weight = matrix.inputs[1]
        if weight is None or not _is_constant(weight) or array_of(weight).ndim != _MATRIX:
            return None
        return ChannelParameters(((weight, 1), (bias, 0)), node)
    return _parameters(node)


def _parameters(node: ir.Node) -> ChannelParameters | None:
    """Return a Gemm's, MatMul's or Conv's weight and bias along its outputs."""
    if node.op_type not in {"Gemm", "MatMul", "Conv"} or node.domain not in {"", "ai.onnx"}:
        return None
    weight = node.inputs[1]
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if (
        weight is None
        or not _is_constant(weight)
        or len(list(weight.uses())) != 1
        or (bias is not None and not _is_constant(bias))
    ):
        return None
    if node.op_type == "Conv":
        axis = 0
    elif array_of(weight).ndim != _MATRIX or ("transA" in node.attributes and node.attributes["transA"].as_int() == 1):
        return None
    else:
        axis = 0 if "transB" in node.attributes and node.attributes["transB"].as_int() == 1 else 1
    parameters = [(weight, axis)]
    if bias is not None:
        parameters.append((bias, array_of(bias).ndim - 1))
    return ChannelParameters(tuple(parameters), node)


def _is_constant(value: ir.Value) -> bool:
    """Return whether a value is an initializer; others may read it too, for torch joins those that are equal."""
    return value.const_value is not None and value.producer() is None


def array_of(value: ir.Value) -> np.ndarray:
    """Return an initializer's values."""
    if value.const_value is None:
        raise ValueError(f"{value.name} is no initializer")
    array: np.ndarray = value.const_value.numpy()
    return array
