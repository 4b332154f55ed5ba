"""Which execution provider runs which node of a file, and which nodes run beside a GPU on the CPU on purpose."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import onnxruntime

from lit_gelu.display import Displayed, HtmlTable, count_of
from lit_gelu.export.errors import ProviderError
from lit_gelu.export.runtime.model_file import SIZES, ModelFile, graphs_of, nodes_of, parsed_file
from lit_gelu.export.runtime.providers import CUDA

if TYPE_CHECKING:
    import onnx

RECORD = "session.record_ep_graph_assignment_info"


@dataclass(frozen=True)
class PlacedNode:
    """One node and who runs it.

    Args:
        provider: The execution provider.
        operator: The operator, with its domain unless that is the standard one.
        name: The node's name in the file.
    """

    provider: str
    operator: str
    name: str


@dataclass(frozen=True, repr=False)
class Placement(Displayed):
    """Who runs what, as onnxruntime divided the graph: before its fusions, so nodes are those of the file.

    Args:
        nodes: All nodes.

    Example:
        >>> nodes = PlacedNode("CUDAExecutionProvider", "Gemm", "a"), PlacedNode("CPUExecutionProvider", "Elu", "b")
        >>> print(Placement(nodes))
        CUDAExecutionProvider  1 node   Gemm
        CPUExecutionProvider   1 node   Elu
        >>> [node.name for node in Placement(nodes).outside("CUDAExecutionProvider")]
        ['b']
    """

    nodes: tuple[PlacedNode, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Number of nodes by execution provider, the most first."""
        return dict(Counter(node.provider for node in self.nodes).most_common())

    @property
    def operators(self) -> dict[str, dict[str, int]]:
        """Number of nodes by execution provider and operator."""
        return {
            provider: dict(Counter(node.operator for node in self.nodes if node.provider == provider).most_common())
            for provider in self.counts
        }

    def outside(self, *providers: str) -> tuple[PlacedNode, ...]:
        """Return the nodes that others run.

        Args:
            *providers: Execution providers.

        Returns:
            The nodes that none of them runs.
        """
        return tuple(node for node in self.nodes if node.provider not in providers)

    def __str__(self) -> str:
        """Return a table with one line a provider."""
        rows = []
        width = max(map(len, self.counts), default=0)
        for provider, operators in self.operators.items():
            count = sum(operators.values())
            names = ", ".join(name if number == 1 else f"{number} {name}" for name, number in operators.items())
            rows.append(f"{provider:<{width}}  {count} node{'s' if count != 1 else ' '}  {names}")
        return "\n".join(rows)

    def _summary(self) -> str:
        return ", ".join(f"{provider} {count_of(count, 'node')}" for provider, count in self.counts.items())

    def _html_table(self) -> HtmlTable:
        rows = [(provider, self.counts[provider], operators) for provider, operators in self.operators.items()]
        return HtmlTable(("provider", "nodes", "operators"), rows)


def placement_of(session: onnxruntime.InferenceSession) -> Placement:
    """Read who runs what in a session of `open_session`, which has it recorded."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        raise ProviderError(
            f"onnxruntime {onnxruntime.__version__} does not tell which provider runs which node. Install a newer one."
        )
    try:
        subgraphs = session.get_provider_graph_assignment_info()
    except Exception as error:
        raise ProviderError(
            f"This session did not record which provider runs which node ({error}). Open it with lit_gelu.export."
            f"OnnxPredictor, or set {RECORD}=1 in its options."
        ) from error
    return Placement(
        tuple(
            PlacedNode(part.ep_name, f"{node.domain}::{node.op_type}" if node.domain else node.op_type, node.name)
            for part in subgraphs
            for node in part.get_nodes()
        )
    )


def named(nodes: tuple[PlacedNode, ...], most: int = 8) -> str:
    """Return nodes for a message."""
    shown = ", ".join(f"{node.operator} {node.name!r}" for node in nodes[:most])
    return shown if len(nodes) <= most else f"{shown} and {len(nodes) - most} more"


# The inputs that kernels of the CUDA provider read from host memory, such as the second of Reshape: by position.
_IN_HOST_MEMORY_TEXT = """
    ConstantOfShape 0, CumSum 1, Expand 1, If 0, Loop 0 1, Pad 1 2 3, Range 0 1 2, Reshape 1, Resize 1 2 3,
    Slice 1 2 3 4, Split 1, Squeeze 1, Tile 1, TopK 1, Trilu 1, Unsqueeze 1, Upsample 1, ReduceMax 1, ReduceMean 1,
    ReduceMin 1, ReduceProd 1, ReduceSum 1, ReduceL1 1, ReduceL2 1, ReduceLogSumExp 1
"""
_IN_HOST_MEMORY: Mapping[str, tuple[int, ...]] = {
    name: tuple(map(int, positions)) for name, *positions in map(str.split, _IN_HOST_MEMORY_TEXT.split(","))
}


def without_shape_arithmetic(path: str | os.PathLike[str], nodes: Iterable[PlacedNode]) -> tuple[PlacedNode, ...]:
    """Leave out the nodes on the CPU that compute nothing but sizes; what onnxruntime made itself stays."""
    # Such a node has only sizes (of Shape or Size), constants and results of its like as inputs, and its results go to
    # its like or to where a kernel of the GPU reads host memory anyway, such as the second input of Reshape. No tensor
    # travels to the device or back for it. A value that becomes data, as the factor in x * x.shape[0], does.
    placed = tuple(nodes)
    if not placed:
        return ()
    graph = _Graph(parsed_file(Path(path)).graph)
    sizes = graph.computing_sizes({node.name for node in placed})
    return tuple(node for node in placed if node.name not in sizes and not graph.made(node))


def copied_sizes(model: ModelFile, placement: Placement) -> tuple[PlacedNode, ...]:
    """Return the nodes on CUDA that read a size where a kernel of the GPU reads its own memory: it is copied there."""
    graph = _Graph(parsed_file(model.path).graph)
    found = set(graph.reading_sizes())
    return tuple(node for node in placement.nodes if node.provider == CUDA and (node.name in found or graph.made(node)))


class _Graph:
    """Who makes and who reads which value of a file, inner graphs included."""

    def __init__(self, graph: "onnx.GraphProto") -> None:
        nodes = list(nodes_of(graph))
        self._named = {node.name: node for node in nodes if node.name}
        self._constants = {tensor.name for each in graphs_of(graph) for tensor in each.initializer}
        self._constants |= {value for node in nodes if node.op_type == "Constant" for value in node.output}
        self._maker = {value: node for node in nodes for value in node.output}
        self._readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in nodes:
            for position, value in enumerate(node.input):
                self._readers.setdefault(value, []).append((node, position))

    def made(self, node: PlacedNode) -> bool:
        """Return whether onnxruntime made this node, of sizes: a Gather where it moves a Transpose past a Shape."""
        return node.operator == "Gather" and node.name not in self._named

    def computing_sizes(self, names: set[str]) -> set[str]:
        """Return those of the named nodes that compute nothing but sizes: what is left when none has to go."""
        left = {name: self._named[name] for name in names if name in self._named}
        while wrong := [
            name for name, node in left.items() if not (self._is_fed(node, left) and self._ends(node, left))
        ]:
            for name in wrong:
                del left[name]
        return set(left)

    def _is_fed(self, node: "onnx.NodeProto", others: "Mapping[str, onnx.NodeProto]") -> bool:
        """Return whether all inputs are sizes, constants or of the others."""
        values = [value for value in node.input if value and value not in self._constants]
        makers = [self._maker.get(value) for value in values]
        return all(maker is not None and (maker.op_type in SIZES or maker.name in others) for maker in makers)

    def _ends(self, node: "onnx.NodeProto", others: "Mapping[str, onnx.NodeProto]") -> bool:
        """Return whether all who read the results are of the others, or read host memory there."""
        return all(
            reader.name in others or _in_host_memory(reader, position)
            for value in node.output
            for reader, position in self._readers.get(value, ())
        )

    def reading_sizes(self) -> Iterator[str]:
        """Yield the nodes that read a size elsewhere than in host memory."""
        for value, maker in self._maker.items():
            for reader, position in self._readers.get(value, ()) if maker.op_type in SIZES else ():
                if not _in_host_memory(reader, position):
                    yield reader.name


def _in_host_memory(reader: "onnx.NodeProto", position: int) -> bool:
    """Return whether a kernel of the GPU reads this input from host memory."""
    return not reader.domain and position in _IN_HOST_MEMORY.get(reader.op_type, ())
