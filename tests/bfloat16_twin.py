"""A bfloat16 file's float32 twin: onnxruntime's CPU, which has no bfloat16 arithmetic, computes what a GPU would."""

import numpy as np
import onnx
import onnx_ir as ir

_ROUNDS = "lit_gelu.rounds"
_FLOAT, _BFLOAT16 = ir.DataType.FLOAT, ir.DataType.BFLOAT16


def fp32_twin(model: ir.Model) -> ir.Model:
    """Return a float32 model that computes what a bfloat16 one does where every kernel rounds its result once."""
    # onnxruntime's CPU has no bfloat16 arithmetic. In the twin every node computes in float32 and its result is rounded
    # to bfloat16 by two Casts; weights have the same values. Inputs and outputs are float32, inputs rounded likewise.
    twin = ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(model)))  # of values within recipes too
    for value in twin.graph.initializers.values():
        if value.dtype == _BFLOAT16 and value.const_value is not None:
            value.const_value = ir.tensor(value.const_value.numpy().astype(np.float32), name=value.name)
            value.dtype = _FLOAT
    for value in twin.graph.inputs:
        if value.dtype == _BFLOAT16:
            value.dtype = _FLOAT
            _round(twin.graph, value, before=twin.graph[0])
    for node in list(ir.traversal.RecursiveGraphIterator(twin.graph)):
        if _ROUNDS not in node.metadata_props:
            _widen(node)
    return twin


def _widen(node: ir.Node) -> None:
    """Let a node compute in float32, and round what it makes."""
    if node.op_type == "Cast" and node.attributes["to"].as_int() == _BFLOAT16:
        node.attributes["to"] = ir.AttrInt64("to", _FLOAT)
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == _BFLOAT16:
            array = attribute.as_tensor().numpy().astype(np.float32)
            node.attributes[name] = ir.AttrTensor(name, ir.tensor(array))
    for value in node.outputs:
        if value.dtype == _BFLOAT16:
            value.dtype = _FLOAT
            _round(node.graph, value, after=node)


def _round(
    graph: ir.Graph | ir.Function, value: ir.Value, *, before: ir.Node | None = None, after: ir.Node | None = None
) -> None:
    """Let all readers of a value read it rounded to bfloat16."""
    uses, is_output = list(value.uses()), value.is_graph_output()
    down = ir.node("Cast", [value], attributes={"to": int(_BFLOAT16)})
    up = ir.node("Cast", [down.outputs[0]], attributes={"to": int(_FLOAT)})
    for node, dtype in ((down, _BFLOAT16), (up, _FLOAT)):
        node.metadata_props[_ROUNDS] = "1"
        node.outputs[0].dtype, node.outputs[0].shape = dtype, value.shape
    if before is not None:
        graph.insert_before(before, [down, up])
    elif after is not None:
        graph.insert_after(after, [down, up])
    for use in uses:
        use.node.replace_input_with(use.idx, up.outputs[0])
    if is_output:
        name = value.name
        for i, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[i] = up.outputs[0]
        value.name, up.outputs[0].name = f"{name}_before_rounding", name
