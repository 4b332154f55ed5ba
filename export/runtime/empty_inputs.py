"""Which inputs of a file may not be empty, since onnxruntime would end the process: a call would take a server down."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

# Kernels of onnxruntime on the CPU whose threads end the process on 0 rows ("terminate called without an active
# exception").
_ABORTING = frozenset({("", "LSTM"), ("", "GRU"), ("com.microsoft", "DynamicQuantizeLSTM")})


def never_empty_inputs(model: "onnx.ModelProto") -> frozenset[str]:
    """Return the inputs of a model of which such a kernel's input is computed."""
    aborting = _with_functions(model)
    needed: set[str] = set()
    for node in reversed(model.graph.node):  # what makes a value stands before what takes it
        inner = list(_within(node))
        if needed.intersection(node.output) or any(_operator(one) in aborting for one in inner):
            needed.update(name for one in inner for name in one.input)
    weights = {tensor.name for tensor in model.graph.initializer}  # in old files they are among the inputs
    return frozenset(value.name for value in model.graph.input if value.name in needed - weights)


def _with_functions(model: "onnx.ModelProto") -> set[tuple[str, str]]:
    """Return the operators that end the process, the model's own functions that call one included."""
    calls = {
        (function.domain, function.name): {_operator(one) for node in function.node for one in _within(node)}
        for function in model.functions
    }
    found = set(_ABORTING) - calls.keys()  # a function of the same name is taken in an operator's place
    while more := {name for name, operators in calls.items() if name not in found and operators & found}:
        found |= more
    return found


def _operator(node: "onnx.NodeProto") -> tuple[str, str]:
    """Return a node's domain and operator; the standard domain has two names."""
    return "" if node.domain == "ai.onnx" else node.domain, node.op_type


def _within(node: "onnx.NodeProto") -> Iterator["onnx.NodeProto"]:
    """Yield a node, and those of the graphs inside of it, which may take values from outside of them."""
    yield node
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for inner in graph.node:
                yield from _within(inner)
