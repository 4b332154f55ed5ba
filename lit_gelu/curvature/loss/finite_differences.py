"""The Hessian of one batch's loss times a vector, as a difference of gradients."""

import math

import torch
from torch import Tensor

from lit_gelu.curvature.loss.evaluation import Closure, loss_after_gradient
from lit_gelu.curvature.loss.layout import Displacement, ParameterLayout, displaced

_TOO_FAR = 3.0
"""How many times the change of the gradient that was aimed at is still taken: a product anew costs more."""

_SHORTEST = 20.0
"""In units of the rounding unit: with shorter steps, the rounding of the parameters themselves is seen."""


class FiniteDifferences:
    """H v as the difference of two gradients: ``(g(theta + h v) - g(theta - h v)) / (2 h)``.

    With the cube root c of the rounding unit (4.9e-3 in float32, 6.1e-6 in float64), which balances the rounding of g
    against the third derivative, h is such that the gradient changes by c of its length, ``h ||H v|| = c ||g||``, and
    the parameters by no more than c of theirs, ``h ||v|| <= c ||theta||``. The second alone would not do: along the
    steepest eigenvectors of a trained net such a step leads out of the valley.

    One-sided, ``(g(theta + h v) - g(theta)) / h`` with ten times the square root of the rounding unit as c, costs one
    gradient instead of two. Its error is of the order of c.

    Where the gradient jumps (ReLU, max pooling), the differences hold the jumps within a step, which a second
    derivative has not: they are right for smooth losses only.

    ``||H v||`` is not known before. It is taken to be that of the largest product so far; where a step turns out to be
    too long, the product is computed again.

    Source: Nocedal and Wright 2006, "Numerical Optimization", section 8.1, for the cube and the square root.

    Args:
        closure: The loss of the batch.
        layout: The parameters: moved during a product, and put back bit by bit.
        step: c; by default as above, with the rounding unit of the coarsest type among the parameters.
        one_sided: Whether to take the second formula.
        largest: The largest eigenvalue in magnitude, as far as is known, for the first step.
    """

    def __init__(
        self,
        closure: Closure,
        layout: ParameterLayout,
        step: float | None = None,
        *,
        one_sided: bool = False,
        largest: float | None = None,
    ) -> None:
        self.note = ""
        self.doubtful = False
        self._closure = closure
        self._layout = layout
        self._one_sided = one_sided
        self._step = step or (one_sided_step(layout) if one_sided else relative_step(layout))
        self._bend = abs(largest or 0.0)
        self._first_order: Tensor | None = None
        self._lengths: list[float] = []

    def first_order(self) -> Tensor:
        """Return the gradient and, as its last element, the loss."""
        if self._first_order is None:
            self._first_order = loss_after_gradient(self._closure, self._layout)
        return self._first_order

    def product(self, vector: Tensor) -> Tensor:
        """Return ``H v``."""
        gradient = self.first_order()[:-1]
        norms = [vector.norm()] if self._lengths else [vector.norm(), self._layout.values().norm(), gradient.norm()]
        length, *others = torch.stack(norms).tolist()  # in one copy: the host waits once
        self._lengths = self._lengths or others  # neither parameters nor gradient differ at the next product
        scale, slope = self._lengths
        if length == 0:
            return torch.zeros_like(vector)
        longest, shortest = (share * (scale or 1.0) for share in (self._step, _SHORTEST * _unit(self._layout)))
        aim = self._step * slope
        with displaced(self._layout) as displacement:
            while True:
                reach = min(longest, max(shortest, aim / self._bend)) if self._bend else longest
                product = self._difference(displacement, gradient, vector, reach / length)
                bend = float(product.norm()) / length
                self._bend = max(self._bend, bend)
                if reach <= shortest or not bend * reach > _TOO_FAR * aim:
                    return product

    def _difference(self, displacement: Displacement, gradient: Tensor, vector: Tensor, h: float) -> Tensor:
        """Return the quotient for a step."""
        displacement.move(vector, h)
        ahead = loss_after_gradient(self._closure, self._layout)[:-1]
        if self._one_sided:
            return ahead.sub_(gradient).div_(h)
        displacement.move(vector, -h)
        behind = loss_after_gradient(self._closure, self._layout)[:-1]
        return ahead.sub_(behind).div_(2 * h)


def one_sided_step(layout: ParameterLayout) -> float:
    """Return ten times the square root of the rounding unit of the coarsest type among the parameters, at most 0.2.

    Args:
        layout: The parameters.

    Returns:
        3.5e-3 in float32, 1.5e-7 in float64.
    """
    return min(0.2, 10 * math.sqrt(_unit(layout)))


def relative_step(layout: ParameterLayout) -> float:
    """Return the cube root of the rounding unit of the coarsest type among the parameters.

    Args:
        layout: The parameters.

    Returns:
        4.9e-3 in float32, 6.1e-6 in float64, 0.1 in float16 and 0.2 in bfloat16.
    """
    return math.cbrt(_unit(layout))


def scaled_offset(layout: ParameterLayout, vector: Tensor, step: float) -> tuple[Tensor, Tensor]:
    """Scale a vector to ``step`` times the length of the parameters, on the device.

    Args:
        layout: The parameters.
        vector: The direction, shape ``[size]``.
        step: The length of the offset in units of ``||theta||``; of 1 if all parameters are zero.

    Returns:
        ``h = step ||theta|| / ||v||`` (no dimensions) and ``h v``; of the zero vector, 1 and zeros.
    """
    length, scale = vector.norm(), layout.values().norm()
    scale = torch.where(scale > 0, scale, 1)
    h = torch.where(length > 0, step * scale / torch.where(length > 0, length, 1), 1)
    return h, vector * h


def _unit(layout: ParameterLayout) -> float:
    """Return the rounding unit of the coarsest type among the parameters."""
    return max(torch.finfo(tensor.dtype).eps for tensor in layout.tensors.values())
