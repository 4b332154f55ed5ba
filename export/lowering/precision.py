"""Turns a float32 graph into one that computes in float16 or bfloat16, with a list of what stays in float32.

Every value has the dtype of the node that makes it. Where a node wants the other one, one Cast stands between, which
all readers in that graph share; so a region that stays in float32 has one Cast in front and one behind.
"""

import copy
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import onnx_ir as ir

from lit_gelu.errors import ArgumentError
from lit_gelu.export.inputs import SCOPE
from lit_gelu.export.lowering.policy import DTYPES, NEWEST_OPSET, OLDEST_OPSET, accepted_types, has_kernel, schema_of
from lit_gelu.export.lowering.spellings import calling_module

# What torch.amp's autocast computes in float32, as ONNX operators: exponentials, logarithms, powers, and sums that
# overflow or lose their small terms. Softmax and normalisations are not in it: onnxruntime and TensorRT accumulate them
# in float32 whatever their input is, as PyTorch's own half-precision kernels do.
STRICT_KEEP = (
    "Acos", "Asin", "Cosh", "CumSum", "Exp", "Log", "Pow", "Range", "Reciprocal", "ReduceL1", "ReduceL2",
    "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Sinh", "Tan",
)  # fmt: skip
# What stays in float32 under any policy: onnxruntime 1.31's CUDA kernels of sums and means overflow in float16 where
# PyTorch's do not. On an H200 the mean over 8 x 8 places of values above 1,000 was infinite.
OVERFLOWING = {"fp16": ("ReduceL2", "ReduceLogSumExp", "ReduceMean", "ReduceSum", "ReduceSumSquare")}
_FLOAT = ir.DataType.FLOAT
_NAMES = {kind: name for name, kind in DTYPES.items()}
_FINITE = {kind: float(ml_dtypes.finfo(kind.numpy()).max) for kind in DTYPES.values()}  # type: ignore[no-untyped-call]

# Those whose numbers are not all exact in 16 bits; of truth values and bytes they are.
_INTEGERS = {
    ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64
}  # fmt: skip
# What torch.amp's autocast computes in 16 bits whatever it is given.
_PRODUCTS = {"Attention", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"}


@dataclass
class _Conversion:
    """The state of one conversion."""

    dtype: ir.DataType
    runtime: str
    keep: tuple[str, ...]
    exact: set[ir.Node]  # stay in float32 as well
    used: set[str] = field(default_factory=set)
    casts: dict[tuple[int, int, ir.DataType], ir.Value] = field(default_factory=dict)


def convert(
    model: ir.Model,
    dtype: str,
    keep_fp32: Sequence[str] = (),
    *,
    strict: bool,
    io_fp32: bool = False,
    runtime: str = "portable",
) -> None:
    """Convert a float32 model in place."""
    # Weights are rounded once; finite constants beyond the dtype's range (attention masks of -3.4e38) become its
    # largest number. What a preprocessing computes stays in float32, and so does any operator that does not exist in
    # the dtype or for which the runtime has no kernel in it, and with `strict` what follows from integers, up to the
    # first product.
    narrow = DTYPES[dtype]
    exact = _computed_from_integers(model.graph, _FINITE[narrow]) if strict else set()
    kept = STRICT_KEEP if strict else OVERFLOWING.get(dtype, ())
    state = _Conversion(narrow, runtime, (*keep_fp32, *kept), exact)
    # Every value gets a type of its own: the exporter shares one between a value and its Identity.
    values = [value for graph in model.graphs() for value in (*graph.inputs, *graph.initializers.values())]
    values += [value for graph in model.graphs() for node in graph for value in node.outputs]
    for value in values:
        value.type = copy.deepcopy(value.type)
    for value in model.graph.inputs:
        if value.dtype == _FLOAT and not io_fp32:
            value.dtype = state.dtype
    _convert_graph(model.graph, state)
    outputs = _FLOAT if io_fp32 else state.dtype
    _convert_outputs(model.graph, outputs, state)
    _convert_initializers(model.graph, outputs, state)
    unused = [entry for entry in keep_fp32 if entry not in state.used]
    if unused:
        raise ArgumentError(
            f"keep_fp32={list(keep_fp32)!r}: {', '.join(map(repr, unused))} fits no operator, node or module. "
            "Accepted: names of ONNX operators ('Softmax'), and patterns over those of nodes and modules ('head.*')."
        )


def _convert_graph(graph: ir.Graph, state: _Conversion) -> None:
    for node in list(graph):
        computed = _dtype_of(node, state)
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                inner = attribute.as_graph()
                for value in inner.inputs:
                    if value.dtype == _FLOAT:
                        value.dtype = state.dtype
                _convert_graph(inner, state)
                _convert_outputs(inner, state.dtype, state)
                _convert_initializers(inner, state.dtype, state)
        for i, operand in enumerate(node.inputs):  # constants are converted later, by all their readers
            is_other = operand is not None and operand.dtype in {_FLOAT, state.dtype} and operand.dtype != computed
            if operand is not None and is_other and computed in _accepted(node, i) and not _is_weight(operand):
                node.replace_input_with(i, _cast(operand, computed, node, state))
        _convert_attributes(node, computed)
        for i, value in enumerate(node.outputs):
            if value.dtype == _FLOAT and computed in _accepted(node, i, output=True):
                value.dtype, value.const_value = computed, None


def _dtype_of(node: ir.Node, state: _Conversion) -> ir.DataType:
    names = (node.op_type, node.name or "", calling_module(node))
    for entry in state.keep:
        if any(fnmatch.fnmatchcase(name, entry) for name in names if name):
            state.used.add(entry)
            return _FLOAT
    if node in state.exact:
        return _FLOAT
    scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes", "")
    if "'preprocessing" in scopes and f"'{SCOPE}" not in scopes:
        return _FLOAT
    if node.domain in {"", "ai.onnx"} and schema_of(node.op_type, NEWEST_OPSET) is not None:
        floats = [
            i for i, value in enumerate(node.inputs) if value is not None and value.dtype in {_FLOAT, state.dtype}
        ]
        if floats and not any(state.dtype in _accepted(node, i) for i in floats):
            return _FLOAT
        if not has_kernel(state.runtime, node.op_type, _NAMES[state.dtype], OLDEST_OPSET):  # nor at any newer one
            return _FLOAT
    return state.dtype


def _accepted(node: ir.Node, index: int, *, output: bool = False) -> frozenset[ir.DataType]:
    if node.domain not in {"", "ai.onnx"}:
        return frozenset(DTYPES.values())
    return accepted_types(node.op_type, index, NEWEST_OPSET, output=output)


def _cast(value: ir.Value, dtype: ir.DataType, reader: ir.Node, state: _Conversion) -> ir.Value:
    """Return a value in another dtype: one Cast for each graph that reads it."""
    graph = reader.graph
    if not isinstance(graph, ir.Graph):
        raise TypeError(f"{reader.op_type} is in no graph")
    key = (id(graph), id(value), dtype)
    if key not in state.casts:
        node = ir.node("Cast", [value], attributes={"to": int(dtype)})
        node.outputs[0].dtype, node.outputs[0].shape = dtype, value.shape
        producer = value.producer()
        if producer is not None and producer.graph is graph:
            graph.insert_after(producer, node)
        else:
            graph.insert_before(graph[0], node)
        state.casts[key] = node.outputs[0]
    return state.casts[key]


def _convert_attributes(node: ir.Node, computed: ir.DataType) -> None:
    """Convert what a node's attributes say of dtypes: ``Cast`` to float32, and constants."""
    if computed == _FLOAT:
        return
    if node.op_type == "Cast" and node.attributes["to"].as_int() == _FLOAT:
        node.attributes["to"] = ir.AttrInt64("to", computed)
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == _FLOAT:
            node.attributes[name] = ir.AttrTensor(name, ir.tensor(_rounded(attribute.as_tensor().numpy(), computed)))


def _convert_outputs(graph: ir.Graph, computed: ir.DataType, state: _Conversion) -> None:
    """Give a graph its outputs in a dtype, under the names that they have."""
    for value in list(graph.outputs):
        rounded_itself = _is_weight(value) and all(_reads_narrow(use.node, use.idx, state) for use in value.uses())
        if value.dtype in {_FLOAT, state.dtype} and value.dtype != computed and not rounded_itself:
            node = ir.node("Cast", [value], attributes={"to": int(computed)})
            cast = node.outputs[0]
            cast.dtype, cast.shape = computed, value.shape
            graph.append(node)
            name = value.name
            for i, output in enumerate(graph.outputs):
                if output is value:
                    graph.outputs[i] = cast
            value.name, cast.name = f"{name}_unrounded", name


def _convert_initializers(graph: ir.Graph, outputs: ir.DataType, state: _Conversion) -> None:
    """Round the weights of readers that compute in the dtype; those of the others stay, and a shared one is doubled."""
    for name, value in list(graph.initializers.items()):
        if value.dtype != _FLOAT or value.const_value is None:
            continue
        narrow = [use for use in value.uses() if _reads_narrow(use.node, use.idx, state)]
        stays = value.is_graph_output() and outputs == _FLOAT  # a weight that the module returns
        if not narrow and (stays or not value.is_graph_output()):
            continue
        rounded = ir.tensor(_rounded(value.const_value.numpy(), state.dtype))
        if len(narrow) == len(list(value.uses())) and not stays:
            rounded.name = name
            value.const_value, value.dtype = rounded, state.dtype
            continue
        twin = ir.Value(name=f"{name}_{state.dtype.name.lower()}", const_value=rounded)
        twin.dtype, twin.shape = state.dtype, value.shape
        graph.initializers[str(twin.name)] = twin
        for use in narrow:
            use.node.replace_input_with(use.idx, twin)


def _reads_narrow(node: ir.Node, index: int, state: _Conversion) -> bool:
    return _dtype_of(node, state) == state.dtype and state.dtype in _accepted(node, index)


def _rounded(array: np.ndarray, dtype: ir.DataType) -> np.ndarray:
    """Round an array; what is finite stays finite."""
    largest = _FINITE[dtype]
    finite = np.where(np.isfinite(array), np.clip(array, -largest, largest), array)
    return finite.astype(dtype.numpy())


def _is_weight(value: ir.Value) -> bool:
    return value.const_value is not None and value.producer() is None


def _computed_from_integers(graph: ir.Graph, largest: float) -> set[ir.Node]:
    """Return the nodes between integers and the first product, or the first value of another origin."""
    # Sines of time steps and the like: 16 bits would round them before any layer does. The conversion itself is one of
    # the nodes where anything but a product reads it. Constants beyond ``largest``, such as an attention mask's -1e9,
    # become that number when they are converted: what float32 computes with them would become infinite, and stays out.
    following: set[ir.Node] = set()
    for node in graph:
        floats = [value for value in node.inputs if value is not None and value.dtype == _FLOAT]
        follow = [value for value in floats if value.producer() in following]
        others = [value for value in floats if value.producer() not in following]
        if _converts(node) or (
            follow
            and node.domain in {"", "ai.onnx"}
            and node.op_type not in _PRODUCTS
            and all(_is_constant_within(value, largest) for value in others)
            and not any(attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values())
        ):
            following.add(node)
    read = {node for node in following if any(use.node in following for use in node.outputs[0].uses())}
    return {node for node in following if node in read or not _converts(node)}


def _converts(node: ir.Node) -> bool:
    if node.op_type != "Cast" or node.inputs[0] is None:
        return False
    return node.attributes["to"].as_int() == _FLOAT and node.inputs[0].dtype in _INTEGERS


def _is_constant_within(value: ir.Value, largest: float) -> bool:
    if value.const_value is None:
        return False
    array = np.abs(value.const_value.numpy())
    return not np.any(np.isfinite(array) & (array > largest))
