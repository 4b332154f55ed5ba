"""Hands the bias of a layer to the GELU behind it, where one kernel of onnxruntime's CUDA provider adds it.

That provider's Gelu loads and stores one value at a time, its BiasGelu four: 86 and 37 instructions an element in
float16 (read in onnxruntime 1.31.1's code for compute capability 9.0). Its Gemm writes the bias over the whole output
first, and adds the product to it. So a Gemm becomes a MatMul with a transposed weight. BiasGelu adds to the last
dimension: that of channels in NHWC, which a convolution's output has in a session with ``prefer_nhwc``. The Transposes
about the GELU then cancel those about the convolutions.

In float16 BiasGelu rounds erf to float16 before it adds 1, Gelu does not. So under ``strict`` no float16 file has one,
nor may onnxruntime make one of an Add and a Gelu.
"""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from lit_gelu.activations.onnx_recipes import OnnxRecipes
from lit_gelu.export.lowering.folding import ChannelParameters, array_of, layer_before
from lit_gelu.export.lowering.kernels import DTYPES, Target
from lit_gelu.export.lowering.lowering_table import MARKER_DOMAIN, BoundActivation
from lit_gelu.export.lowering.policy import Choice, with_bias
from lit_gelu.export.lowering.spellings import in_place_of

_LINEAR = {"Add": 2, "Gemm": 2}  # ranks of weights by the node that makes a layer's output
_RANKS = {**_LINEAR, "Conv": 4}


def hand_over_biases(
    model: ir.Model, found: Mapping[str, BoundActivation], taken: Mapping[str, Choice], target: Target, *, nhwc: bool
) -> dict[str, Choice]:
    """Give markers the bias of the layer in front as a second input, in place; return these sites' choices."""
    calls: dict[str, list[ir.Node]] = defaultdict(list)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.domain == MARKER_DOMAIN:
            calls[node.attributes["site"].as_string()].append(node)
    changed = {}
    for site, markers in calls.items():
        recipes = found[site].recipes
        choice = with_bias(recipes, taken[site], target) if isinstance(recipes, OnnxRecipes) else None
        layers = [layer for marker in markers if (layer := _layer(marker, _RANKS if nhwc else _LINEAR)) is not None]
        if choice is not None and len(layers) == len(markers):  # a site has one recipe for all its calls
            changed[site] = choice
            for marker, layer in zip(markers, layers, strict=True):
                _give(marker, layer)
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


def _layer(marker: ir.Node, ranks: Mapping[str, int]) -> ChannelParameters | None:
    """Return the layer that alone makes a marker's input, with a bias for each channel."""
    layer = layer_before(marker)
    if layer is None or layer.node.graph is not marker.graph or len(layer.parameters) == 1:
        return None
    factors = [layer.node.attributes[key].as_float() for key in ("alpha", "beta") if key in layer.node.attributes]
    weight, bias = (array_of(value) for value, _ in layer.parameters)
    fits = weight.ndim == ranks.get(layer.node.op_type) and bias.shape == (layer.channels,)
    return layer if fits and all(factor == 1.0 for factor in factors) else None


def _give(marker: ir.Node, layer: ChannelParameters) -> None:
    """Put the bias behind the product."""
    node, ((weight, axis), (bias, _)) = layer.node, layer.parameters
    if node.op_type == "Add":
        product = next(value for value in node.inputs if value is not bias)
    elif node.op_type == "Conv":
        x = in_place_of(node, ir.node("Conv", node.inputs[:2], node.attributes, name=node.name))
        there = ir.node("Transpose", [x], {"perm": (0, 2, 3, 1)})
        inner = ir.node(marker.op_type, [there.outputs[0], bias], marker.attributes, domain=marker.domain)
        in_place_of(marker, there, inner, ir.node("Transpose", [inner.outputs[0]], {"perm": (0, 3, 1, 2)}))
        if x.shape is not None:
            there.outputs[0].shape = ir.Shape([x.shape[i] for i in (0, 2, 3, 1)])
        return
    else:
        if axis == 0:
            array = np.ascontiguousarray(array_of(weight).T)
            weight.const_value, weight.shape = ir.tensor(array, name=weight.name), ir.Shape(array.shape)
        product = in_place_of(node, ir.node("MatMul", [node.inputs[0], weight], name=node.name))
    in_place_of(marker, ir.node(marker.op_type, [product, bias], marker.attributes, domain=marker.domain))
