"""Hands the bias of a layer to the GELU behind it, where one kernel of onnxruntime's CUDA provider adds it.

That provider's Gelu loads and stores one value at a time, its BiasGelu four: 86 and 37 instructions an element in
float16 (read in onnxruntime 1.31.1's code for compute capability 9.0). Its Gemm writes the bias over the whole output
first, and adds the product to it. So a Gemm becomes a MatMul with a transposed weight.
"""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from lit_gelu.activations.onnx_recipes import OnnxRecipes
from lit_gelu.export.lowering.folding import Layer, array_of, layer_before
from lit_gelu.export.lowering.kernels import Target
from lit_gelu.export.lowering.lowering_table import MARKER_DOMAIN, BoundActivation
from lit_gelu.export.lowering.policy import Choice, with_bias
from lit_gelu.export.lowering.spellings import in_place_of


def hand_over_biases(
    model: ir.Model, found: Mapping[str, BoundActivation], taken: Mapping[str, Choice], target: Target
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
        layers = [layer for marker in markers if (layer := _layer(marker)) is not None]
        if choice is not None and len(layers) == len(markers):  # a site has one recipe for all its calls
            changed[site] = choice
            for marker, layer in zip(markers, layers, strict=True):
                _give(marker, layer)
    return changed


def _layer(marker: ir.Node) -> Layer | None:
    """Return the linear layer that alone makes a marker's input, with a bias for each of its last dimension."""
    layer = layer_before(marker)
    if layer is None or layer.node.graph is not marker.graph or len(layer.parameters) == 1:
        return None
    factors = [layer.node.attributes[key].as_float() for key in ("alpha", "beta") if key in layer.node.attributes]
    fits = layer.node.op_type in {"Add", "Gemm"} and array_of(layer.parameters[1][0]).shape == (layer.channels,)
    return layer if fits and all(factor == 1.0 for factor in factors) else None


def _give(marker: ir.Node, layer: Layer) -> None:
    """Put the bias behind the product."""
    node, ((weight, axis), (bias, _)) = layer.node, layer.parameters
    if node.op_type == "Add":
        product = next(value for value in node.inputs if value is not bias)
    else:
        if axis == 0:
            array = np.ascontiguousarray(array_of(weight).T)
            weight.const_value, weight.shape = ir.tensor(array, name=weight.name), ir.Shape(array.shape)
        product = in_place_of(node, ir.node("MatMul", [node.inputs[0], weight], name=node.name))
    in_place_of(marker, ir.node(marker.op_type, [product, bias], marker.attributes, domain=marker.domain))
