"""The straight lines that a function approaches, read from its values far out."""

import torch
from torch import Tensor

from lit_gelu.activations.analysis.sampling import FARTHEST, Function

Asymptote = tuple[float, float]

_FIRST = 17  # from 2**17 on: there cancellation costs 3e-11, and what fades as 1/x^2 is as small
_SETTLED = 1e-5  # share by which the last values may differ; 1/log(x) still moves by 3e-4


def asymptote_of(f: Function, slope: Function, side: int) -> Asymptote | None:
    """Compute the straight line that a function approaches on one side.

    With ``x = side * 2**k`` for ``k`` up to 60, the slope is the limit of ``f'(x)`` and the offset that of
    ``f(x) - slope * x``. The offset is good to about 1e-10 where it is approached as ``1 / x**2``, to 1e-8 where it is
    approached as ``1 / x``, and to rounding where it is approached faster.

    Args:
        f: The function.
        slope: Its derivative.
        side: -1 for the left, 1 for the right.

    Returns:
        ``(slope, offset)`` of ``y = slope x + offset``; ``None`` if there is no such line (powers, logarithms,
        oscillations).

    Example:
        >>> asymptote_of(torch.tanh, lambda x: 1 - torch.tanh(x) ** 2, -1)
        (0.0, -1.0)
        >>> asymptote_of(torch.square, lambda x: 2 * x, 1) is None
        True
    """
    x, values, slopes = tail(f, slope, side)
    if len(x) < 4 or not _settles(slopes):
        return None
    limit = slopes[-1].item()
    if abs(limit) <= 4 * torch.finfo(torch.float64).eps * slopes.abs().max().item():
        limit = 0.0  # what cancellation left over
    rest = values - limit * x
    moved = rest.diff().abs()
    rounding = 2 * torch.finfo(torch.float64).eps * (limit * x[1:]).abs()
    first = min(_FIRST, len(moved) - 3)
    best = first + int((moved + rounding)[first:].argmin())
    if moved[best] > _SETTLED * rest[: best + 2].abs().max() + rounding[best]:
        return None
    return limit + 0.0, rest[best + 1].item() + 0.0


def tail(f: Function, slope: Function, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``x = side * 2**k``, ``f(x)`` and ``f'(x)`` for ``k`` from 0 to 60, up to where one is not finite.

    Args:
        f: The function.
        slope: Its derivative.
        side: -1 for the left, 1 for the right.

    Returns:
        Three tensors of the same length.

    Example:
        >>> len(tail(torch.exp, torch.exp, 1)[0])  # exp(1024) overflows
        10
    """
    x = side * torch.logspace(0, torch.tensor(FARTHEST).log2().item(), 61, base=2.0, dtype=torch.float64)
    values, slopes = f(x), slope(x)
    length = int((values.isfinite() & slopes.isfinite()).cumprod(0).sum())
    return x[:length], values[:length], slopes[:length]


def grows(values: Tensor, largest: float) -> bool:
    """Return whether values far out grow without bound.

    Args:
        values: At ``2**k``, in order.
        largest: The largest absolute value elsewhere.

    Returns:
        Whether the last eight grow in size, do not settle, and have passed ``largest``: logarithms and powers do, what
        oscillates does not.

    Example:
        >>> x = torch.logspace(0, 60, 61, base=2.0, dtype=torch.float64)
        >>> grows(x.log(), 4.0), grows(x.atan(), 1.5), grows(x.sin(), 1.0)
        (True, False, False)
    """
    sizes = values[-8:].abs()
    return len(sizes) > 1 and bool((sizes.diff() > 0).all()) and not _settles(values) and sizes[-1].item() > largest


def _settles(values: Tensor) -> bool:
    """Return whether the last three values are the same for practical purposes."""
    return bool((values[-3:].diff().abs() <= _SETTLED * values.abs().max().clamp(max=1.0)).all())
