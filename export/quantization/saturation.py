"""Weights whose products fit in 16 bits: what processors without VNNI need to add them up rightly."""

from collections.abc import Iterator, Sequence
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
    found = {
        name: _override(weight, node, per_channel)
        for name, weight, node in _weights(model, layers)
        if node.op_type in _INTEGER
    }
    return {name: override for name, override in found.items() if override}


def one_scale_overrides(model: onnx.ModelProto, layers: Sequence[NetLayer]) -> dict[str, list[dict[str, Any]]]:
    """Return what has weights that can have no scale for each channel take one, whatever was asked for."""
    return {name: [{}] for name, weight, node in _weights(model, layers) if _takes_one_scale(weight, node)}


def _weights(model: onnx.ModelProto, layers: Sequence[NetLayer]) -> Iterator[tuple[str, np.ndarray, onnx.NodeProto]]:
    """Yield the name and values of each layer's weight, and its node."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    wanted = {layer.node for layer in layers}
    for node in model.graph.node:
        if node.name in wanted:
            yield node.input[1], numpy_helper.to_array(weights[node.input[1]]), node


def _takes_one_scale(weight: np.ndarray, node: onnx.NodeProto) -> bool:
    """Return whether a layer's weights take one scale only."""
    # onnxruntime's quantizer counts the channels of one group of a ConvTranspose, and its bias has those of all. It
    # takes the summands of a stack of matrices for channels, which onnxruntime's product of integers then refuses.
    if node.op_type == "ConvTranspose":
        return any(attribute.name == "group" and attribute.i > 1 for attribute in node.attribute)
    return node.op_type == "MatMul" and weight.ndim > 2


def _override(weight: np.ndarray, node: onnx.NodeProto, per_channel: bool) -> list[dict[str, Any]]:
    """Return the ranges of one weight; none if its own ones do."""
    per_channel = per_channel and weight.ndim > 1 and not _takes_one_scale(weight, node)
    rows = weight_rows(weight, node)
    plain, pairs = np.abs(rows).max(axis=1, initial=0), pair_sums(rows)
    if not per_channel:
        plain, pairs = plain.max(initial=0, keepdims=True), pairs.max(initial=0, keepdims=True)
    if not (pairs > plain).any():
        return []
    ranges = [{"rmin": -float(each), "rmax": float(each)} for each in np.maximum(plain, pairs)]
    return [{"axis": _channel_axis(node), **each} for each in ranges] if per_channel else ranges


def saturating_layers(model: onnx.ModelProto) -> list[str]:
    """Return the layers of a file whose sums can be wrong without VNNI."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.INT8}
    read = {node.output[0]: node for node in model.graph.node if node.op_type == "DequantizeLinear"}
    found: dict[str, None] = {}
    for node in model.graph.node:
        reader = read.get(node.input[1]) if node.op_type in _INTEGER else None
        if reader is None or reader.input[0] not in stored:
            continue
        weight = numpy_helper.to_array(stored[reader.input[0]])
        if (pair_sums(weight_rows(weight, node)) > LIMIT).any():
            found.setdefault(reader.input[0].removesuffix("_quantized"))
    return list(found)
