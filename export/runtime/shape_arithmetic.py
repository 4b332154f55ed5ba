"""Nodes that onnxruntime runs on the CPU beside a GPU on purpose: they compute sizes, which lie in host memory."""

import os
from collections.abc import Iterable, Mapping, Sequence

import onnx

from lit_gelu.export.runtime.model_file import graphs_of, nodes_of
from lit_gelu.export.runtime.placement import PlacedNode

_SOURCES = frozenset({"Shape", "Size"})  # kernels of the GPU whose result lies in host memory

# The inputs that kernels of the CUDA provider read from host memory, such as the second of Reshape: by position.
_IN_HOST_MEMORY: Mapping[str, Sequence[int]] = {
    "ConstantOfShape": (0,),
    "CumSum": (1,),
    "Expand": (1,),
    "If": (0,),
    "Loop": (0, 1),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
    **dict.fromkeys(
        ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceL1", "ReduceL2", "ReduceLogSumExp"),
        (1,),
    ),
}


def without_shape_arithmetic(path: str | os.PathLike[str], nodes: Iterable[PlacedNode]) -> tuple[PlacedNode, ...]:
    """Leave out the nodes that compute nothing but sizes.

    Such a node has only sizes (of ``Shape`` or ``Size``), constants and results of its like as inputs, and its results
    go to its like or to where a kernel of the GPU reads host memory anyway, such as the second input of ``Reshape``. No
    tensor travels to the device or back for it. A value that becomes data, as the factor in ``x * x.shape[0]``, does.

    Args:
        path: The file.
        nodes: Nodes that run on the CPU, by their names in the file.

    Returns:
        The others. A node that is not in the file (onnxruntime made it) is one of them.
    """
    placed = tuple(nodes)
    if not placed:
        return ()
    graph = _Graph(onnx.load(path, load_external_data=False).graph)
    sizes = graph.computing_sizes({node.name for node in placed})
    return tuple(node for node in placed if node.name not in sizes)


class _Graph:
    """Who makes and who reads which value of a file, inner graphs included."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        nodes = list(nodes_of(graph))
        self._named = {node.name: node for node in nodes if node.name}
        self._constants = {tensor.name for each in graphs_of(graph) for tensor in each.initializer}
        self._constants |= {value for node in nodes if node.op_type == "Constant" for value in node.output}
        self._maker = {value: node for node in nodes for value in node.output}
        self._readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in nodes:
            for position, value in enumerate(node.input):
                self._readers.setdefault(value, []).append((node, position))

    def computing_sizes(self, names: set[str]) -> set[str]:
        """Return those of the named nodes that compute nothing but sizes: what is left when none has to go."""
        left = {name: self._named[name] for name in names if name in self._named}
        while wrong := [
            name for name, node in left.items() if not (self._is_fed(node, left) and self._ends(node, left))
        ]:
            for name in wrong:
                del left[name]
        return set(left)

    def _is_fed(self, node: onnx.NodeProto, others: Mapping[str, onnx.NodeProto]) -> bool:
        """Return whether all inputs are sizes, constants or of the others."""
        values = [value for value in node.input if value and value not in self._constants]
        makers = [self._maker.get(value) for value in values]
        return all(maker is not None and (maker.op_type in _SOURCES or maker.name in others) for maker in makers)

    def _ends(self, node: onnx.NodeProto, others: Mapping[str, onnx.NodeProto]) -> bool:
        """Return whether all who read the results are of the others, or read host memory there."""
        return all(
            reader.name in others or (not reader.domain and position in _IN_HOST_MEMORY.get(reader.op_type, ()))
            for value in node.output
            for reader, position in self._readers.get(value, ())
        )
