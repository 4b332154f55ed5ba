"""Which execution provider runs which node of a file, and which nodes run beside a GPU on the CPU on purpose."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnxruntime

from lit_gelu.display import Displayed, HtmlTable, count_of
from lit_gelu.errors import ProviderError
from lit_gelu.export.runtime.model_file import SIZES, graphs_of, nodes_of, operator_name, parsed_file

RECORD = "session.record_ep_graph_assignment_info"


@dataclass(frozen=True)
class PlacedNode:
    """One node and who runs it."""

    provider: str  # the execution provider
    operator: str  # with its domain unless that is the standard one
    name: str  # in the file


@dataclass(frozen=True, repr=False)
class Placement(Displayed):
    """Who runs what, as onnxruntime divided the graph: before its fusions, so nodes are those of the file.

    Example:
        >>> nodes = PlacedNode("CUDAExecutionProvider", "Gemm", "a"), PlacedNode("CPUExecutionProvider", "Elu", "b")
        >>> print(Placement(nodes))
        CUDAExecutionProvider  1 node   Gemm
        CPUExecutionProvider   1 node   Elu
        >>> [node.name for node in Placement(nodes).outside("CUDAExecutionProvider")]
        ['b']
    """

    nodes: tuple[PlacedNode, ...]  # all of them

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
        """Return the nodes that none of these providers runs."""
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
    try:
        subgraphs = session.get_provider_graph_assignment_info()
    except Exception as error:
        raise ProviderError(
            f"This session did not record who runs which node ({error}). Open it with {RECORD}=1 in its options."
        ) from error
    return Placement(
        tuple(
            PlacedNode(part.ep_name, operator_name(node), node.name) for part in subgraphs for node in part.get_nodes()
        )
    )


def named(nodes: tuple[PlacedNode, ...], most: int = 8) -> str:
    """Return nodes for a message."""
    shown = ", ".join(f"{node.operator} {node.name!r}" for node in nodes[:most])
    return shown if len(nodes) <= most else f"{shown} and {len(nodes) - most} more"


# The inputs that kernels of the CUDA provider read from host memory, such as the second of Reshape: by position.
_IN_HOST_MEMORY: Mapping[str, tuple[int, ...]] = {
    "ConstantOfShape": (0,), "CumSum": (1,), "Expand": (1,), "If": (0,), "Loop": (0, 1), "Pad": (1, 2, 3),
    "Range": (0, 1, 2), "Reshape": (1,), "Resize": (1, 2, 3), "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,),
    "Tile": (1,), "TopK": (1,), "Trilu": (1,), "Unsqueeze": (1,), "Upsample": (1,), "ReduceMax": (1,),
    "ReduceMean": (1,), "ReduceMin": (1,), "ReduceProd": (1,), "ReduceSum": (1,), "ReduceL1": (1,), "ReduceL2": (1,),
    "ReduceLogSumExp": (1,),
}  # fmt: skip


def without_shape_arithmetic(path: str | os.PathLike[str], nodes: Iterable[PlacedNode]) -> tuple[PlacedNode, ...]:
    """Leave out the nodes on the CPU that compute nothing but sizes; what onnxruntime made itself stays."""
    # Such a node has only sizes (of Shape or Size), constants and results of its like as inputs, and its results go to
    # its like or to where a kernel of the GPU reads host memory anyway, such as the second input of Reshape. No tensor
    # travels to the device or back for it. A value that becomes data, as the factor in x * x.shape[0], does.
    placed = tuple(nodes)
    if not placed:
        return ()
    graph = parsed_file(Path(path)).graph
    everything = list(nodes_of(graph))
    constants = {tensor.name for each in graphs_of(graph) for tensor in each.initializer}
    constants |= {value for node in everything if node.op_type == "Constant" for value in node.output}
    maker = {value: node for node in everything for value in node.output}
    data = {value.name for each in graphs_of(graph) for value in each.output}
    readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in everything:
        for position, value in enumerate(node.input):
            readers.setdefault(value, []).append((node, position))
    counts = Counter(node.name for node in everything)
    by_name = {node.name: node for node in everything if node.name and counts[node.name] == 1}
    suspects = {node.name for node in placed if node.name in by_name}

    def computes_sizes(node: onnx.NodeProto) -> bool:
        sources = [maker.get(value) for value in node.input if value and value not in constants]
        fed = all(source is not None and (source.op_type in SIZES or source.name in suspects) for source in sources)
        return (
            fed
            and data.isdisjoint(node.output)
            and all(
                reader.name in suspects or (not reader.domain and position in _IN_HOST_MEMORY.get(reader.op_type, ()))
                for value in node.output
                for reader, position in readers.get(value, ())
            )
        )

    while wrong := {name for name in suspects if not computes_sizes(by_name[name])}:  # until none has to go
        suspects -= wrong
    # onnxruntime makes a Gather of sizes where it moves a Transpose past a Shape.
    inserted = {node.name for node in placed if node.operator == "Gather" and node.name not in counts}
    return tuple(node for node in placed if node.name not in suspects | inserted)
