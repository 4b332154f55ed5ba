"""Calling a closure for its loss, and differentiating it once; nothing touches ``.grad``."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from lit_gelu.curvature.errors import LossCurvatureError
from lit_gelu.curvature.loss.layout import ParameterLayout

Closure = Callable[[], Tensor]
"""Computes the scalar loss, averaged over the samples of one batch, from the live parameters."""

Reduce = Callable[[Tensor], Tensor]
"""Sums a flat tensor over ranks."""

Item = TypeVar("Item")


def evaluate_loss(closure: Closure) -> Tensor:
    """Call a closure with gradients enabled, whatever mode the caller is in."""
    with torch.inference_mode(False), torch.enable_grad():
        loss = closure()
        if isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point():
            return loss.reshape(())
    given = f"shape {tuple(loss.shape)} and {loss.dtype}" if isinstance(loss, Tensor) else repr(type(loss).__name__)
    raise LossCurvatureError(
        f"The closure returned {given}. Accepted is a scalar loss: one real number in a tensor. Reduce it, e.g. by "
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
        raise LossCurvatureError(
            f"The loss does not depend on any of the {len(tensors)} parameters given, so it has no curvature along "
            "them. The closure must call the model that they belong to, without detach() or no_grad()."
        )
    return list(gradients)


def loss_and_gradient(
    closure: Closure | Sequence[Closure],
    parameters: ParameterLayout,
    *,
    samples: int | Sequence[int] = 1,
    reduce: Reduce | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the loss and its gradient over all samples of all batches and ranks.

    With L_b the loss of batch b, averaged over its n_b samples: ``sum_b n_b L_b / sum_b n_b`` and its gradient.

    Args:
        closure: The loss of one batch, or one closure a batch.
        parameters: Where the gradient's elements belong.
        samples: How many samples each batch has.
        reduce: Sums a flat tensor over ranks; called once.

    Returns:
        The loss, no dimensions, and the gradient, shape ``[size]``, both without graph.

    Raises:
        LossCurvatureError: If a closure returns no scalar, or the loss depends on no parameter.

    Example:
        >>> weight = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> loss, gradient = loss_and_gradient(lambda: weight.square().sum(), ParameterLayout({"weight": weight}))
        >>> loss.item(), gradient.tolist()
        (5.0, [2.0, 4.0])
    """
    closures, counts = batches_of(closure, samples)
    mean = weighted_mean([loss_after_gradient(each, parameters) for each in closures], counts, reduce)
    return mean[-1].clone(), mean[:-1]


def mean_loss(
    closure: Closure | Sequence[Closure], *, samples: int | Sequence[int] = 1, reduce: Reduce | None = None
) -> Tensor:
    """Return the loss over all samples of all batches and ranks, by forward passes only.

    Args:
        closure: The loss of one batch, or one closure a batch.
        samples: How many samples each batch has.
        reduce: Sums a flat tensor over ranks; called once.

    Returns:
        The loss, no dimensions; float64 if it is, else float32.

    Raises:
        LossCurvatureError: If a closure returns no scalar.
    """
    closures, counts = batches_of(closure, samples)
    rows = []
    for each in closures:
        with torch.no_grad():
            loss = each()
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            evaluate_loss(lambda loss=loss: loss)  # type: ignore[misc]  # raises, and says why
        rows.append(loss.reshape(1).to(torch.promote_types(loss.dtype, torch.float32)))
    return weighted_mean(rows, counts, reduce)[0]


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
        raise LossCurvatureError(
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
