"""Finds what follows from integers alone, such as sines of time steps: 16 bits would round it before any layer does."""

import numpy as np
import onnx_ir as ir

_FLOAT = ir.DataType.FLOAT
# Those whose numbers are not all exact in 16 bits; of truth values and bytes they are.
_INTEGERS = {
    ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64
}  # fmt: skip
# What torch.amp's autocast computes in 16 bits whatever it is given.
_PRODUCTS = {"Attention", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"}


def computed_from_integers(graph: ir.Graph, largest: float) -> set[ir.Node]:
    """Return the nodes between integers and the first product, or the first value that does not follow from integers.

    The conversion itself is one of them where anything but a product reads it.

    Args:
        graph: In float32, in the order in which it is computed.
        largest: Of the finite numbers of the 16 bits. Constants beyond it, such as an attention mask's -1e9, become
            this number when they are converted. What float32 computes with them would become infinite, and is left out.
    """
    found: set[ir.Node] = set()
    for node in graph:
        floats = [value for value in node.inputs if value is not None and value.dtype == _FLOAT]
        follow = [value for value in floats if value.producer() in found]
        others = [value for value in floats if value.producer() not in found]
        if _converts(node) or (
            follow
            and node.domain in {"", "ai.onnx"}
            and node.op_type not in _PRODUCTS
            and all(_is_constant_within(value, largest) for value in others)
            and not any(attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values())
        ):
            found.add(node)
    read = {node for node in found if any(use.node in found for use in node.outputs[0].uses())}
    return {node for node in found if node in read or not _converts(node)}


def _converts(node: ir.Node) -> bool:
    """Return whether a node turns integers to float32."""
    if node.op_type != "Cast" or node.inputs[0] is None:
        return False
    return node.attributes["to"].as_int() == _FLOAT and node.inputs[0].dtype in _INTEGERS


def _is_constant_within(value: ir.Value, largest: float) -> bool:
    if value.const_value is None:
        return False
    array = np.abs(value.const_value.numpy())
    return not np.any(np.isfinite(array) & (array > largest))
