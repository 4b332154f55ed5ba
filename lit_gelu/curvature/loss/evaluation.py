"""Calling a closure for its loss, differentiating it once, and what its graph says; nothing touches ``.grad``."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from lit_gelu.curvature.loss.layout import ParameterLayout
from lit_gelu.errors import ArgumentError

Closure = Callable[[], Tensor]
"""Computes the scalar loss, averaged over the samples of one batch, from the live parameters."""

Reduce = Callable[[Tensor], Tensor]
"""Sums a flat tensor over ranks."""

Item = TypeVar("Item")

REENTRANT = (
    "The model uses activation checkpointing with use_reentrant=True, through which no gradient can be asked for but "
    "by backward(). Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False), in models of Hugging Face "
    'gradient_checkpointing_enable({"use_reentrant": False}), or define curvature_loss(batch) without checkpointing.'
)
"""What to say of reentrant checkpoints."""

Kinds = frozenset[type[Node]]
"""The classes of a graph's nodes: few, where the nodes are thousands."""


def evaluate_loss(closure: Closure) -> Tensor:
    """Call a closure with gradients enabled, whatever mode the caller is in."""
    with torch.inference_mode(False), torch.enable_grad():
        loss = closure()
        if isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point():
            return loss.reshape(())
    kind = f"shape {tuple(loss.shape)} and {loss.dtype}" if isinstance(loss, Tensor) else repr(type(loss).__name__)
    raise ArgumentError(
        f"The closure returned {kind}. Accepted is a scalar loss: one real number in a tensor. Reduce it, e.g. by "
        "loss.mean()."
    )


def differentiate(loss: Tensor, layout: ParameterLayout, *, create_graph: bool = False) -> list[Tensor | None]:
    """Differentiate a loss by the parameters of a layout; ``None`` for those that it does not depend on."""
    tensors = list(layout.tensors.values())
    gradients: tuple[Tensor | None, ...] = (None,)
    if loss.requires_grad:
        with without_autocast(layout):
            gradients = torch.autograd.grad(loss, tensors, create_graph=create_graph, allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise ArgumentError(
            f"The loss does not depend on any of the {len(tensors)} parameters given, so it has no curvature along "
            "them. The closure must call the model that they belong to, without detach() or no_grad()."
        )
    return list(gradients)


def loss_after_gradient(closure: Closure, layout: ParameterLayout) -> Tensor:
    """Return the gradient of one batch's loss and, last, the loss in one vector ``[size + 1]`` without graph."""
    loss = evaluate_loss(closure)
    pieces = layout.pieces(differentiate(loss, layout))
    return torch.cat([*pieces, loss.detach().reshape(1).to(layout.device, layout.dtype)])


def batches_of(batch: Item | Sequence[Item], samples: int | Sequence[int]) -> tuple[list[Item], list[int]]:
    """Return one item and one number of samples a batch."""
    items: list[Item] = list(batch) if isinstance(batch, Sequence) else [batch]
    counts = [samples] * len(items) if isinstance(samples, int) else list(samples)
    if not items or len(items) != len(counts) or min(counts) < 1:
        raise ArgumentError(
            f"{len(items)} batches came with samples={samples!r}. Accepted is a positive number of samples for each of "
            "at least one batch: by these the batches are weighted."
        )
    return items, counts


def weighted_mean(rows: Sequence[Tensor], counts: Sequence[int], reduce: Reduce | None) -> Tensor:
    """Average vectors over batches and ranks, each weighted by its number of samples."""
    # A rank sends [n_r mean_r, n_r] in one flat tensor, so one all-reduce is enough.
    total = sum(counts)
    mean = rows[0] if len(rows) == 1 else sum_weighted(rows, [count / total for count in counts])
    if reduce is None:
        return mean
    summed = reduce(torch.cat([mean * total, mean.new_tensor([total])]))
    return summed[:-1] / summed[-1]


def sum_weighted(rows: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return ``sum_i weights[i] rows[i]``."""
    result = rows[0] * weights[0]
    for row, weight in zip(rows[1:], weights[1:], strict=True):
        result.add_(row, alpha=weight)
    return result


def is_finite(vector: Tensor) -> bool:
    """Return whether all elements are finite; the host waits for it."""
    # A sum with NaN or infinity in it is not finite, and takes a twentieth of the time of a test of each element; only
    # finite elements whose sum overflows need that test.
    return math.isfinite(vector.sum().item()) or bool(vector.isfinite().all())


@contextmanager
def without_autocast(layout: ParameterLayout) -> Iterator[None]:
    """Switch autocast off: passes back run in the types that the pass forward chose."""
    with torch.autocast(layout.device.type, enabled=False):
        yield


def kinds_of(*tensors: Tensor | None) -> Kinds:
    """Return the classes of the nodes in the graph that computed some tensors."""
    seen: set[Node] = set()
    level = {tensor.grad_fn for tensor in tensors if tensor is not None and tensor.grad_fn is not None}
    while level:  # breadth first, so that sets do the work: half the time of one node after the other
        seen |= level
        following = {node for current in level for node, _ in current.next_functions if node is not None}
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
        raise ArgumentError(REENTRANT)
