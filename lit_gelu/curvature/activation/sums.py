"""Sums over an activation's input: of its powers, and of what the activation and its derivatives are there.

They add up over calls, batches and ranks; `lit_gelu.curvature.activation.statistics` turns them into figures.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.numerics.joint import Derivatives
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.curvature.activation.evaluator import Evaluator
from lit_gelu.curvature.activation.kinks import WINDOW, jump_sizes, weighted_window_counts
from lit_gelu.curvature.activation.slopes import Intervals
from lit_gelu.curvature.activation.totals import Totals

EPSILON = 0.01
"""How near f' must be to 0 (saturated) or to 1 (linear). It must stay below |min f'|, or f' < 0 counts as saturated."""

Integrand = Callable[[Derivatives], Tensor]

_MEANS: dict[str, Integrand] = {
    "mean_output": lambda at: at.value,
    "mean_squared_output": lambda at: at.value * at.value,
    "mean_derivative": lambda at: at.first,
    "mean_squared_derivative": lambda at: at.first * at.first,
    "mean_abs_second_derivative": lambda at: at.second.abs(),
    "mean_gate": lambda at: torch.full_like(at.first, torch.nan) if at.gate is None else at.gate,
}
_SHARES: dict[str, Integrand] = {  # ones and zeros, see `Totals`
    "share_decreasing": lambda at: torch.lt(at.first, 0.0, out=torch.empty_like(at.first)),
    "share_falling": lambda at: torch.le(at.first, -EPSILON, out=torch.empty_like(at.first)),
    "share_saturated": lambda at: at.first.abs().lt_(EPSILON),
    "share_linear": lambda at: (at.first - 1.0).abs_().lt_(EPSILON),
}

INTEGRANDS: tuple[str, ...] = (*_MEANS, *_SHARES)
"""What is averaged over the finite x, from f, f', f'' and the gate there."""

SUMS: tuple[str, ...] = (
    "count",
    "count_non_finite",
    "sum",
    "sum_of_squares",
    "sum_of_cubes",
    "sum_of_fourth_powers",
    *INTEGRANDS,
    "kink_mass",
)
"""The columns of `activation_sums`: finite elements, other elements, powers of x - pivot, each integrand's sum."""


class Activity(NamedTuple):
    """The sums of a pre-activation, and which of its channels the activation passes on.

    Args:
        sums: The columns of `SUMS`, ``[sites, columns]``.
        alive: ``[sites, channels]``: whether |f'| >= 0.01 at any finite element of the channel; ``None`` without
            channels.
    """

    sums: Tensor
    alive: Tensor | None


def activation_sums(
    activation: nn.Module | ActivationSpec | str,
    x: Tensor,
    *,
    stacked: bool = False,
    pivot: Tensor | float = 0.0,
    scale: Tensor | None = None,
    registry: ActivationRegistry | None = None,
) -> Tensor:
    """Sum, over the elements of a pre-activation, what the statistics are means of.

    With f the activation and x running over the finite elements: the count, the count of NaN and infinite elements, the
    sums of ``(x - pivot)^k``, k = 1 to 4, and those of f(x), f(x)^2, f'(x), f'(x)^2, |f''(x)|, the gate g(x) = f(x) / x
    (f'(0) at x = 0), [f' < 0], [f' <= -0.01], [|f'| < 0.01] and [|f' - 1| < 0.01]; and the kink mass, see
    `lit_gelu.curvature.activation.kinks.weighted_window_counts`. Sums of two inputs with the same pivot add up to the
    sums of both together.

    The gate has no mean where f(0) != 0 (softplus): its sum is NaN there. f'' is the ordinary second derivative; what
    its jumps contribute is the kink mass, NaN where the kinks of the activation are not known.

    Source: f'^2 as the backward gain is that of Poole et al. 2016, "Exponential expressivity in deep neural networks
    through transient chaos" (arXiv 1606.05340), chi_1 over the variance of the weights.

    Args:
        activation: The activation; of a module, the parameters as they are now.
        x: Pre-activations of any shape that the activation takes. 16-bit inputs are computed in float32. Powers are
            accumulated in float64 (in float32 on devices that have no float64), all else in the type of the input,
            pairwise: within 5e-7 in float32.
        stacked: Whether the first dimension counts sites that share this activation, each to get sums of its own.
        pivot: A number near the mean, one or one for each site: the powers lose
            ``2 k log10(|mean - pivot| / deviation)`` of float64's 16 digits.
        scale: The standard deviation that sets the width of the windows about kinks, one for each site; where it is
            NaN, and by default, that of this input.
        registry: Where the activation's closed forms are looked up; the default registry if not given.

    Returns:
        The columns of `SUMS` on the device of ``x``: shape ``[columns]``, or ``[sites, columns]`` if ``stacked``.

    Example:
        >>> sums = activation_sums("relu", torch.tensor([-1.0, 0.5, 2.0, float("nan")]))
        >>> dict(zip(SUMS[:4], sums.tolist()))
        {'count': 3.0, 'count_non_finite': 1.0, 'sum': 1.5, 'sum_of_squares': 5.25}
    """
    rows = x if stacked else x.unsqueeze(0)
    registry = registry_or_default(registry)
    module = activation if isinstance(activation, nn.Module) else registry.create(activation).to(x.device)
    sums = measure(Evaluator(module, registry), rows, pivot=pivot, scale=scale).sums
    return sums if stacked else sums[0]


def measure(
    evaluator: Evaluator,
    x: Tensor,
    *,
    pivot: Tensor | float = 0.0,
    scale: Tensor | None = None,
    channel_dim: int | None = None,
) -> Activity:
    """Compute the sums of `activation_sums` and which channels are alive, from one evaluation of the activation.

    Args:
        evaluator: The activation.
        x: Pre-activations, ``[sites, ...]``; of an activation with parameters of its own there is one site.
        pivot: As `activation_sums`.
        scale: As `activation_sums`.
        channel_dim: The dimension of ``x`` that counts channels, if there is one.

    Returns:
        Sums and channels.
    """
    x = x.detach()
    x = (x if x.dtype in {torch.float32, torch.float64} else x.float()).contiguous()
    with torch.no_grad():
        total = Totals(x)
        finite = x.abs().lt_(torch.inf)  # ones and zeros
        count = total.count(finite)
        others = total.elements - count
        powers = _powers(x, pivot, total)
        x = x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        at, at_others = evaluator(x, finite)
        sums = torch.stack([total.narrow(f(at)) for f in (*_MEANS.values(), *_SHARES.values())]).to(total.dtype)
        of_one = _of_one(at_others).to(sums, non_blocking=True)
        sums = sums - others * of_one[:, None]
        if evaluator.decreasing is not None:
            sums[INTEGRANDS.index("share_decreasing")] = _count_within(x, finite, evaluator.decreasing, total)
        kinks = _kink_mass(evaluator, x, finite, (count, *powers[:2]), scale, total)
        alive = None if channel_dim is None else _alive(at.first, finite, channel_dim)
        return Activity(torch.cat([torch.stack([count, others, *powers]), sums, kinks[None]]).T, alive)


def _count_within(x: Tensor, finite: Tensor, intervals: Intervals, total: Totals) -> Tensor:
    """Count the finite elements in some intervals: GELU's f' is 0 in float32 from -14 on, and yet it decreases."""
    count = total.count(torch.zeros_like(finite))
    for low, high in intervals:
        inside = torch.gt(x, low, out=torch.empty_like(x)).mul_(x < high).mul_(finite)
        count = count + total.count(inside)
    return count


def _powers(x: Tensor, pivot: Tensor | float, total: Totals) -> tuple[Tensor, ...]:
    """Return the sums of ``(x - pivot)^k``, k = 1 to 4."""
    wide = x.to(total.dtype, copy=True)  # from here on in place: each new tensor pushes another one out of the caches
    if isinstance(pivot, Tensor):
        wide.sub_(pivot.to(wide).reshape(-1, *[1] * (x.dim() - 1)))
    elif pivot != 0.0:
        wide.sub_(pivot)
    wide.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    square = wide * wide
    first, second = total(wide), total(square)
    third = total(wide.mul_(square))
    return first, second, third, total(square.mul_(square))


@lru_cache(maxsize=256)  # an `Evaluator` returns the same object again and again
def _of_one(at: Derivatives) -> Tensor:
    """Return the integrands of one element."""
    return torch.cat([f(at) for f in (*_MEANS.values(), *_SHARES.values())])


def _kink_mass(
    evaluator: Evaluator, x: Tensor, finite: Tensor, moments: tuple[Tensor, ...], scale: Tensor | None, total: Totals
) -> Tensor:
    """Return the sums of `weighted_window_counts`; 0 without kinks, NaN where they are not known."""
    count, first, second = moments
    kinks = evaluator.kinks
    if not kinks:
        return torch.full_like(count, torch.nan) if kinks is None else torch.zeros_like(count)
    own = (second / count - (first / count).square()).clamp(min=0).sqrt()
    deviation = own if scale is None else torch.where(scale.isnan(), own, scale.to(own))
    sizes = jump_sizes(evaluator.activation, kinks, x[0], evaluator.registry)
    return weighted_window_counts(x, finite, kinks, sizes, WINDOW * deviation, total)


def _alive(first: Tensor, finite: Tensor, channel_dim: int) -> Tensor:
    """Return ``[sites, channels]``: whether any finite element of a channel is not saturated."""
    open_ = first.abs().ge_(EPSILON).mul_(finite)
    rest = [dim for dim in range(1, open_.dim()) if dim != channel_dim]
    if not open_.numel():  # amax of nothing is an error
        return torch.zeros(open_.shape[0], open_.shape[channel_dim], dtype=torch.bool, device=open_.device)
    return (open_.amax(rest) if rest else open_) > 0
