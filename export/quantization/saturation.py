"""Weights whose products fit in 16 bits: what processors without VNNI need to add them up rightly."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from lit_gelu.export.quantization.layers import NetLayer

LIMIT = 128
"""What two neighbouring weights may sum to: 255 * 128 = 32,640 fits in 16 bits with a sign, 255 * 129 does not."""

_INTEGER = ("Conv", "Gemm", "MatMul")  # what onnxruntime's CPU provider has integer kernels for


def pair_sums(rows: np.ndarray) -> np.ndarray:
    """Return each row's largest sum of two neighbours as a magnitude; 0 for rows of one summand."""
    # Neighbours of different sign sum to less than one of them, so those of one sign decide where it matters.
    wide = rows.astype(np.int64) if rows.dtype.kind == "i" else rows
    sums: np.ndarray = np.abs(wide[:, 1:] + wide[:, :-1]).max(axis=1, initial=0)
    return sums


def weight_rows(weight: np.ndarray, node: onnx.NodeProto) -> np.ndarray:
    """Return a layer's weights ``[channels, summands]`` in the order in which a kernel adds them up."""
    if node.op_type == "Conv":
        return np.moveaxis(weight, 1, -1).reshape(len(weight), -1)
    if _channel_axis(node) == 0 or weight.ndim == 1:
        return weight.reshape(-1, weight.shape[-1])
    return np.swapaxes(weight, -1, -2).reshape(-1, weight.shape[-2])


def _channel_axis(node: onnx.NodeProto) -> int:
    """Return which axis of its weights counts the channels of a layer's result."""
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return 0 if node.op_type == "Conv" or attributes.get("transB") else 1


def range_overrides(
    model: onnx.ModelProto, layers: Sequence[NetLayer], *, per_channel: bool
) -> dict[str, list[dict[str, Any]]]:
    """Return wider ranges for weights whose products could leave 16 bits."""
    # x86 processors without VNNI multiply uint8 by int8 with vpmaddubsw, which adds the products of two neighbours and
    # stops at 32,767. With any x in 0..255 the sum is right for sure if |q_k + q_(k+1)| <= 128 for all neighbours. A
    # channel that is rounded at s = max_k |w_k| / 127 and breaks it gets the range 127 s = max_k |w_k + w_(k+1)|
    # instead, at most twice as wide: one bit less at worst, while reduce_range always takes one. Rounding adds at most
    # 1 to a sum of 127. All neighbours count, whichever of them a kernel pairs.
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    wanted = {layer.node for layer in layers}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        if node.name in wanted and node.op_type in _INTEGER:
            readers.setdefault(node.input[1], []).append(node)
    found = {
        name: _override(numpy_helper.to_array(weights[name]), nodes, per_channel) for name, nodes in readers.items()
    }
    return {name: override for name, override in found.items() if override}


def _override(weight: np.ndarray, nodes: Sequence[onnx.NodeProto], per_channel: bool) -> list[dict[str, Any]]:
    """Return the ranges of one weight; none if its own ones do."""
    axes = {_channel_axis(node) for node in nodes}
    if len(axes) > 1:  # two layers share it, one of them transposed: 7 bits hold in either order
        return [{"reduce_range": True}]
    per_channel = per_channel and weight.ndim > 1
    if per_channel and nodes[0].op_type != "Conv" and weight.ndim != 2:
        return []  # the quantizer gives each summand a scale: onnxruntime computes such products in float32
    rows = weight_rows(weight, nodes[0])
    plain, pairs = np.abs(rows).max(axis=1, initial=0), pair_sums(rows)
    if not per_channel:
        plain, pairs = plain.max(initial=0, keepdims=True), pairs.max(initial=0, keepdims=True)
    if not (pairs > plain).any():
        return []
    ranges = [{"rmin": -float(each), "rmax": float(each)} for each in np.maximum(plain, pairs)]
    axis = next(iter(axes))
    return [{"axis": axis, **each} for each in ranges] if per_channel else ranges


def saturating_layers(model: onnx.ModelProto) -> list[str]:
    """Return the layers of a file whose sums can be wrong without VNNI; some of them run in float32 anyway."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.INT8}
    read = {node.output[0]: node for node in model.graph.node if node.op_type == "DequantizeLinear"}
    found: dict[str, None] = {}
    for node in model.graph.node:
        reader = read.get(node.input[1]) if node.op_type in _INTEGER else None
        if reader is None or reader.input[0] not in stored:
            continue
        weight = numpy_helper.to_array(stored[reader.input[0]])
        if weight.ndim > 2 and node.op_type == "MatMul" and stored[reader.input[2]].dims:
            continue  # a scale for each summand, see above
        if (pair_sums(weight_rows(weight, node)) > LIMIT).any():
            found.setdefault(reader.input[0].removesuffix("_quantized"))
    return list(found)
