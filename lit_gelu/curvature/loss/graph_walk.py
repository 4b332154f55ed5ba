"""What is in the graph that autograd recorded."""

from collections.abc import Iterable

from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from lit_gelu.curvature.errors import LossCurvatureError

REENTRANT = (
    "The model uses activation checkpointing with use_reentrant=True, through which no gradient can be asked for but "
    "by backward(). Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False), in models of Hugging Face "
    'gradient_checkpointing_enable({"use_reentrant": False}), or define curvature_loss(batch) without checkpointing.'
)
"""What to say of reentrant checkpoints."""

Kinds = frozenset[type[Node]]
"""The classes of a graph's nodes: few, where the nodes are thousands."""


def kinds_of(*tensors: Tensor | None) -> Kinds:
    """Return of which classes the nodes are in the graph that computed some tensors."""
    seen: set[Node] = set()
    level = {tensor.grad_fn for tensor in tensors if tensor is not None and tensor.grad_fn is not None}
    while level:  # breadth first, so that sets do the work: half the time of one node after the other
        seen |= level
        following = {node for known in level for node, _ in known.next_functions if node is not None}
        level = following - seen
    return frozenset(map(type, seen))


def has_custom_function(kinds: Iterable[type[Node]]) -> bool:
    """Return whether there is a function whose pass back is written in Python, among what `kinds_of` returned."""
    # Such a pass back may compute its result out of sight of autograd; then a second derivative lacks its share, and
    # nothing says so.
    return any(issubclass(kind, BackwardCFunction) for kind in kinds)


def check_differentiable(kinds: Iterable[type[Node]]) -> None:
    """Refuse a graph that ends in a pass back marked as differentiable once."""
    # torch.autograd.grad raises only if the inputs lie behind such a node; it never does, so their share would be
    # zero.
    if any(kind.__name__.endswith("Error") for kind in kinds):
        raise RuntimeError("a custom function's pass back is marked with @once_differentiable")


def check_checkpoints(kinds: Iterable[type[Node]]) -> None:
    """Refuse a graph with reentrant activation checkpoints."""
    # Parameters inside of one are not in the graph. torch.autograd.grad raises if it has to go through such a
    # checkpoint to reach others; if it has not, as behind the first layer, the share of those inside would be zero.
    if any(kind.__name__ == "CheckpointFunctionBackward" for kind in kinds):
        raise LossCurvatureError(REENTRANT)
