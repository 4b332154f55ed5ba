"""Which execution provider runs which node of a file."""

from collections import Counter
from dataclasses import dataclass

import onnxruntime

from lit_gelu.export.errors import ProviderError

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


@dataclass(frozen=True)
class Placement:
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


def placement_of(session: onnxruntime.InferenceSession) -> Placement:
    """Read who runs what.

    Args:
        session: A session that was opened with ``session.record_ep_graph_assignment_info=1``, as `open_session` does.

    Returns:
        The placement.

    Raises:
        ProviderError: If the session did not record it, or this onnxruntime cannot.
    """
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
    """Return nodes for a message.

    Args:
        nodes: The nodes.
        most: How many to name.

    Returns:
        Operators and names.

    Example:
        >>> named((PlacedNode("CPUExecutionProvider", "Elu", "b"),))
        "Elu 'b'"
    """
    shown = ", ".join(f"{node.operator} {node.name!r}" for node in nodes[:most])
    return shown if len(nodes) <= most else f"{shown} and {len(nodes) - most} more"
