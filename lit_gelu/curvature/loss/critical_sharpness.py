"""Critical sharpness: how far a model can move along a direction before the loss is back where it was."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lit_gelu.curvature.errors import LossCurvatureError, NonFiniteCurvatureError
from lit_gelu.curvature.loss.evaluation import Closure, Reduce, mean_loss
from lit_gelu.curvature.loss.layout import Displacement, ParameterLayout, displaced
from lit_gelu.display import Displayed


@dataclass(frozen=True, repr=False)
class CriticalSharpness(Displayed):
    """What `critical_sharpness` found.

    Attributes:
        sharpness: ``2 / learning_rate``; on a quadratic loss, ``D'HD / g'D``.
        learning_rate: The critical one, in the middle of the bracket; a bound if the search did not end, or the
            direction does not descend.
        bracket: The loss falls (or stays) at the first learning rate, and rises at the second.
        evaluations: How many passes forward were taken.
        converged: Whether the bracket is as narrow as asked for.
    """

    sharpness: float
    learning_rate: float
    bracket: tuple[float, float]
    evaluations: int
    converged: bool


def critical_sharpness(
    closure: Closure | Sequence[Closure],
    parameters: Mapping[str, Tensor],
    direction: Tensor,
    *,
    learning_rate: float,
    loss: Tensor | float | None = None,
    tolerance: float = 1 / 16,
    max_evaluations: int = 32,
    samples: int | Sequence[int] = 1,
    reduce: Reduce | None = None,
) -> CriticalSharpness:
    """Find the learning rate at which a step raises the loss, by passes forward only.

    ``eta_c`` is the learning rate with ``L(theta - eta_c D) = L(theta)``: it is bracketed by doubling or halving from
    ``learning_rate``, then the bracket is halved until its width is at most ``tolerance`` times its upper end. Started
    from the last measurement's result, that takes 6 or 7 passes. A loss that is NaN or infinite counts as risen.

    Along a direction that does not descend (``g'D <= 0``, which the update of a momentum optimizer can be on a few
    examples) the loss rises from the start, and there is no critical learning rate. Rounding hides that: at a tiny
    learning rate the loss seems to stay where it was. So a bracket counts only if the loss fell on the way by more
    than rounding, which may take one more pass, at half of it; otherwise ``converged`` is False, and the learning
    rate is a bound that means nothing more.

    It needs no derivative, so it works where nothing else does: fused attention, sharded or compiled models.

    Source: "A scalable measure of loss landscape curvature for analyzing the training dynamics of LLMs"
    (arXiv 2601.16979).

    Args:
        closure: The mean loss of one batch from the live parameters, or one closure a batch; the same function at every
            call.
        parameters: By name; frozen ones have no place in the vectors. They are moved, and put back bit by bit.
        direction: D, shape ``[size]``: a step goes to ``theta - eta D``.
        learning_rate: Where the search starts: the last result, or the optimizer's.
        loss: ``L(theta)`` if it is known; it saves a pass.
        tolerance: Relative width of the bracket, between 0 and 1.
        max_evaluations: When to give up.
        samples: How many samples each batch has.
        reduce: Sums a flat tensor over ranks; called once a pass, on every rank.

    Returns:
        The learning rate and its sharpness; ``converged`` is False if the loss rose nowhere, or fell nowhere.

    Raises:
        LossCurvatureError: If an argument is not accepted.
        NonFiniteCurvatureError: If the loss itself is NaN or infinite.

    Example:
        >>> weight = torch.tensor([2.0], requires_grad=True)
        >>> found = critical_sharpness(
        ...     lambda: 1.5 * weight.square().sum(), {"weight": weight}, torch.tensor([6.0]), learning_rate=0.5
        ... )
        >>> abs(found.sharpness - 3) < 3 / 16, found.evaluations
        (True, 7)
    """
    if not 0 < learning_rate < math.inf or not 0 < tolerance < 1 or max_evaluations < 2:
        raise LossCurvatureError(
            f"learning_rate={learning_rate}, tolerance={tolerance}, max_evaluations={max_evaluations} is not accepted. "
            "Give a positive learning rate, a tolerance between 0 and 1, and at least 2 evaluations."
        )
    layout = ParameterLayout(parameters)
    direction = layout.check(direction, "The direction")
    with displaced(layout) as displacement:
        loss_here = partial(mean_loss, closure, samples=samples, reduce=reduce)
        search = _Search(loss_here, displacement, direction, max_evaluations, loss)
        low, high = search.bisect(*search.bracket(learning_rate), tolerance)
        narrow = low > 0 and high - low <= tolerance * high < math.inf
        converged = narrow and search.has_fallen(low / 2)
    found = (low + high) / 2 if converged else low if high == math.inf else high if low == 0 else (low + high) / 2
    return CriticalSharpness(2 / found, found, (low, high), search.evaluations, converged)


class _Search:
    """Evaluates the loss along a direction, and counts."""

    def __init__(
        self,
        loss_here: Callable[[], Tensor],
        displacement: Displacement,
        direction: Tensor,
        limit: int,
        base: Tensor | float | None,
    ) -> None:
        self.evaluations = 0
        self._loss_here, self._displacement, self._direction, self._limit = loss_here, displacement, direction, limit
        self._fell, self._unit = False, 0.0
        self._base = self._evaluated() if base is None else float(base)
        if not math.isfinite(self._base):
            raise NonFiniteCurvatureError(
                f"The loss is {self._base} before any step, so none can raise it. Look at the step before."
            )

    def has_fallen(self, learning_rate: float) -> bool:
        """Return whether the loss was seen below where it started by more than rounding, trying once more if not."""
        if not self._fell and self.evaluations < self._limit:
            self._rises(learning_rate)
        return self._fell

    def bracket(self, start: float) -> tuple[float, float]:
        """Double or halve a learning rate until the loss has fallen at one and risen at the next."""
        low, high = 0.0, math.inf
        while (low == 0 or high == math.inf) and self.evaluations < self._limit:
            trial = start if low == 0 and high == math.inf else 2 * low if high == math.inf else high / 2
            low, high = (low, trial) if self._rises(trial) else (trial, high)
        return low, high

    def bisect(self, low: float, high: float, tolerance: float) -> tuple[float, float]:
        """Halve a bracket until it is narrow enough."""
        while low > 0 and high < math.inf and high - low > tolerance * high and self.evaluations < self._limit:
            middle = (low + high) / 2
            low, high = (low, middle) if self._rises(middle) else (middle, high)
        return low, high

    def _rises(self, learning_rate: float) -> bool:
        """Return whether a step with this learning rate raises the loss."""
        self._displacement.move(self._direction * -learning_rate)
        loss = self._evaluated()
        self._fell |= loss < self._base - 8 * self._unit * abs(self._base)
        return not loss <= self._base

    def _evaluated(self) -> float:
        """Return the loss of the parameters as they are."""
        self.evaluations += 1
        loss = self._loss_here()
        self._unit = torch.finfo(loss.dtype).eps
        return loss.item()
