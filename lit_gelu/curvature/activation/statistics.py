"""Figures of an activation's input: how it is distributed, and how curved the activation is where it falls.

Everything is a mean over the finite elements x of the pre-activation, so it is kept as sums that add up over calls,
batches and ranks: `activation_sums` makes one row of sums, `statistics_from_sums` turns rows of sums into figures.
"""

from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.numerics.arguments import Derivatives
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.curvature.activation.formulas import Formulas, Intervals, Jumps, evaluated, formulas_of, jump_sizes

Site = TypeVar("Site", bound=Hashable)

EPSILON = 0.01
"""How near f' must be to 0 (saturated) or to 1 (linear). It must stay below |min f'|, or f' < 0 counts as saturated."""

WINDOW = 0.25
"""Half the width of the window about a kink, in standard deviations of the pre-activation."""

_FITS = 4.0  # how many times larger or smaller than these inputs' own a deviation from elsewhere may be

_EXACT = 2**24  # up to here float32 counts without rounding

Integrand = Callable[[Derivatives], Tensor]

_MEANS: dict[str, Integrand] = {
    "mean_output": lambda at: at.value,
    "mean_squared_output": lambda at: at.value * at.value,
    "mean_derivative": lambda at: at.first,
    "mean_squared_derivative": lambda at: at.first * at.first,
    "mean_abs_second_derivative": lambda at: at.second.abs(),
    "mean_gate": lambda at: torch.full_like(at.first, torch.nan) if at.gate is None else at.gate,
}
_SHARES: dict[str, Integrand] = {  # ones and zeros, see `count`
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

STATISTICS: tuple[str, ...] = (
    "mean",
    "standard_deviation",
    "skewness",
    "excess_kurtosis",
    *INTEGRANDS,
    "kink_mass",
    "share_transition",
    "share_non_finite",
)
"""The names of the figures, in the order of `statistics_from_sums`; monitors log them under these names."""


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """Return the widest floating-point type that a device computes in.

    Args:
        device: The device of the sums.

    Returns:
        ``torch.float64``, or ``torch.float32`` on Apple's ``mps``.

    Example:
        >>> accumulation_dtype(torch.device("cpu"))
        torch.float64
    """
    return torch.float32 if device.type == "mps" else torch.float64


# Of each site's elements, all but the first dimension. What is counted is given as ones and zeros of the type of x, not
# as bools: on a CPU comparing and adding numbers is vectorised, and four to ten times as fast.


def total(values: Tensor) -> Tensor:
    """Sum numbers ``[sites, ...]`` by site, in the accumulation type."""
    return values.reshape(len(values), -1).sum(1, dtype=accumulation_dtype(values.device))


def narrow_total(values: Tensor) -> Tensor:
    """Sum numbers in their own type, which adds pairwise: a third of the time, for a mean without cancellation."""
    # In the accumulation type where there are so many that counts would be rounded.
    flat = values.reshape(len(values), -1)
    return flat.sum(1, dtype=values.dtype if flat.shape[1] <= _EXACT else accumulation_dtype(values.device))


def count(ones: Tensor) -> Tensor:
    """Count, by site, in the accumulation type: exact wherever that is."""
    return narrow_total(ones).to(accumulation_dtype(ones.device))


class Activity(NamedTuple):
    """The sums of a pre-activation, and which of its channels the activation passes on."""

    sums: Tensor  # the columns of `SUMS`, ``[sites, columns]``
    # ``[sites, channels]``: whether |f'| >= 0.01 at any finite element of the channel; ``None`` without channels.
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
    (f'(0) at x = 0), [f' < 0], [f' <= -0.01], [|f'| < 0.01] and [|f' - 1| < 0.01]; and the kink mass, estimated from
    the counts in windows about the kinks. Sums of two inputs with the same pivot add up to the sums of both together.

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
    sums = measure(formulas_of(module, registry), rows, pivot=pivot, scale=scale).sums
    return sums if stacked else sums[0]


def measure(
    formulas: Formulas,
    x: Tensor,
    *,
    pivot: Tensor | float = 0.0,
    scale: Tensor | None = None,
    channel_dim: int | None = None,
) -> Activity:
    """Compute the sums of `activation_sums` of ``[sites, ...]``, and which channels are alive, from one evaluation."""
    # Of an activation with parameters of its own there is one site.
    x = x.detach()
    x = (x if x.dtype in {torch.float32, torch.float64} else x.float()).contiguous()
    with torch.no_grad():
        finite = x.abs().lt_(torch.inf)  # ones and zeros
        counted = count(finite)
        others = x[0].numel() - counted
        powers = _powers(x, pivot)
        x = x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        at, at_others = evaluated(formulas, x, finite)
        sums = torch.stack([narrow_total(f(at)) for f in (*_MEANS.values(), *_SHARES.values())]).to(counted.dtype)
        of_one = _of_one(at_others).to(sums, non_blocking=True)
        sums = sums - others * of_one[:, None]
        if formulas.decreasing is not None:
            sums[INTEGRANDS.index("share_decreasing")] = _count_within(x, finite, formulas.decreasing)
        kinks = _kink_mass(formulas, x, finite, (counted, *powers[:2]), scale)
        alive = None if channel_dim is None else _alive(at.first, finite, channel_dim)
        return Activity(torch.cat([torch.stack([counted, others, *powers]), sums, kinks[None]]).T, alive)


def _count_within(x: Tensor, finite: Tensor, intervals: Intervals) -> Tensor:
    """Count the finite elements in some intervals: GELU's f' is 0 in float32 from -14 on, and yet it decreases."""
    inside_any = count(torch.zeros_like(finite))
    for low, high in intervals:
        inside = torch.gt(x, low, out=torch.empty_like(x)).mul_(x < high).mul_(finite)
        inside_any = inside_any + count(inside)
    return inside_any


def _powers(x: Tensor, pivot: Tensor | float) -> tuple[Tensor, ...]:
    """Return the sums of ``(x - pivot)^k``, k = 1 to 4."""
    # From here on in place: each new tensor pushes another one out of the caches.
    wide = x.to(accumulation_dtype(x.device), copy=True)
    if isinstance(pivot, Tensor):
        wide.sub_(pivot.to(wide).reshape(-1, *[1] * (x.dim() - 1)))
    elif pivot != 0.0:
        wide.sub_(pivot)
    wide.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    square = wide * wide
    first, second = total(wide), total(square)
    third = total(wide.mul_(square))
    return first, second, third, total(square.mul_(square))


@lru_cache(maxsize=256)  # `evaluated` returns the same object again and again
def _of_one(at: Derivatives) -> Tensor:
    """Return the integrands of one element."""
    return torch.cat([f(at) for f in (*_MEANS.values(), *_SHARES.values())])


def _kink_mass(
    formulas: Formulas, x: Tensor, finite: Tensor, moments: tuple[Tensor, ...], scale: Tensor | None
) -> Tensor:
    """Return the sums of `weighted_window_counts`; 0 without kinks, NaN where they are not known."""
    counted, first, second = moments
    kinks = formulas.kinks
    if not kinks:
        return torch.full_like(counted, torch.nan) if kinks is None else torch.zeros_like(counted)
    std = (second / counted - (first / counted).square()).clamp(min=0).sqrt()
    deviation = std
    if scale is not None:
        # A scale of other inputs counts where it fits: elsewhere its windows would hold all of these inputs or none.
        scale = scale.to(std)
        deviation = torch.where((scale > std / _FITS) & (scale < std * _FITS), scale, std)
    sizes = jump_sizes(formulas.activation, kinks, x[0], formulas.registry)
    return weighted_window_counts(x, finite, kinks, sizes, WINDOW * deviation)


def _alive(first: Tensor, finite: Tensor, channel_dim: int) -> Tensor:
    """Return ``[sites, channels]``: whether any finite element of a channel is not saturated."""
    open_ = first.abs().ge_(EPSILON).mul_(finite)
    rest = [dim for dim in range(1, open_.dim()) if dim != channel_dim]
    if not open_.numel():  # amax of nothing is an error
        return torch.zeros(open_.shape[0], open_.shape[channel_dim], dtype=torch.bool, device=open_.device)
    return (open_.amax(rest) if rest else open_) > 0


def weighted_window_counts(
    x: Tensor,
    finite: Tensor,
    kinks: Jumps,
    sizes: list[Tensor | float],
    half_width: Tensor,
) -> Tensor:
    """Sum ``|jump| [|x - place| <= h] / 2h`` over the finite elements and the kinks."""
    # Divided by the count this estimates the kink mass ``sum_k |jump_k| p(x_k)``, ``p`` the density of the
    # pre-activations: a uniform kernel. Its bias is ``h^2 p''(x_k) / 6`` for each kink to leading order, for a normal
    # density at its mean ``-h^2 / 6 s^2`` of it, which is -1.0 % with `WINDOW`; its variance is ``p / 2hn``.
    #
    # Source: Silverman 1986, Density Estimation for Statistics and Data Analysis, sections 2.3 and 3.3.
    h = half_width.reshape(-1, *[1] * (x.dim() - 1)).to(x.dtype)
    sums = torch.zeros_like(half_width)
    for (place, _), size in zip(kinks, sizes, strict=True):
        inside = (x - place).abs_().le_(h).mul_(finite)
        sums = sums + (total(inside * size) if isinstance(size, Tensor) else size * count(inside))
    return sums / torch.where(half_width > 0, 2 * half_width, torch.nan)  # the density of a constant is no number


def statistics_from_sums(sums: Tensor, pivot: Tensor | float = 0.0) -> Tensor:
    """Turn sums into the figures named in `STATISTICS`.

    ========================== =========================================== =============================
    figure                     formula                                     unit
    ========================== =========================================== =============================
    mean                       m = E x                                     that of the pre-activation
    standard_deviation         s = sqrt(E (x - m)^2), of the population    that of the pre-activation
    skewness                   E (x - m)^3 / s^3                           none
    excess_kurtosis            E (x - m)^4 / s^4 - 3, 0 if normal          none
    mean_output                E f(x)                                      that of the output
    mean_squared_output        E f(x)^2, 1 / the forward gain squared      its square
    mean_derivative            E f'(x)                                     none
    mean_squared_derivative    E f'(x)^2, the backward gain                none
    mean_abs_second_derivative E |f''(x)|, jumps of f' left out            1 / unit of the pre-activation
    mean_gate                  E f(x) / x, with f'(0) at x = 0             none
    share_decreasing           P(f'(x) < 0)                                share of the finite elements
    share_falling              P(f'(x) <= -0.01)                           share of the finite elements
    share_saturated            P(|f'(x)| < 0.01)                           share of the finite elements
    share_linear               P(|f'(x) - 1| < 0.01)                       share of the finite elements
    kink_mass                  sum |jump of f'| p(kink), p the density     1 / unit of the pre-activation
    share_transition           1 - share_falling - _saturated - _linear    share of the finite elements
    share_non_finite           NaN and infinite elements                   share of all elements
    ========================== =========================================== =============================

    The means are over the finite elements. The whole of E |f''| is its smooth part, ``mean_abs_second_derivative``,
    plus ``kink_mass``: of a piecewise linear activation such as ReLU the first is 0. In transition is what is neither
    saturated nor linear nor clearly falling; an activation such as GELU, which falls a little on its far left, counts
    there as saturated and as decreasing.

    Args:
        sums: The columns of `SUMS` in the last dimension, as `activation_sums` makes them.
        pivot: What was subtracted; it broadcasts against the other dimensions of ``sums``.

    Returns:
        The figures in the last dimension, same dtype and device; NaN where there is nothing to average, and for
        skewness and kurtosis where the deviation is 0.

    Example:
        >>> figures = statistics_from_sums(activation_sums("relu", torch.tensor([-3.0, 0.5, 1.0, 1.5])))
        >>> dict(zip(STATISTICS, figures.tolist()))["share_linear"]
        0.75
    """
    count, non_finite = sums[..., 0], sums[..., 1]
    m1, m2, m3, m4 = (sums[..., 2:6] / count.unsqueeze(-1)).unbind(-1)
    square = m1 * m1
    variance = (m2 - square).clamp(min=0)
    third = m3 - m1 * (3 * m2 - 2 * square)
    fourth = m4 - m1 * (4 * m3 - m1 * (6 * m2 - 3 * square))
    spread = torch.where(variance > 0, variance, torch.nan)
    moments = [m1 + pivot, variance.sqrt(), third / spread**1.5, fourth / spread.square() - 3]
    integrals = sums[..., 6:] / count.unsqueeze(-1)
    names = SUMS[6:]
    saturated, linear, falling = (
        integrals[..., names.index(f"share_{kind}")] for kind in ("saturated", "linear", "falling")
    )
    transition = (1 - (saturated + linear + falling)).clamp(min=0)
    shares = [transition, non_finite / (count + non_finite)]
    return torch.cat([torch.stack(moments, -1), integrals, torch.stack(shares, -1)], -1)


def activation_statistics(
    activation: nn.Module | ActivationSpec | str, x: Tensor, registry: ActivationRegistry | None = None
) -> dict[str, float]:
    """Return the statistics of one pre-activation tensor; one transfer to the host.

    Args:
        activation: The activation; of a module, the parameters as they are now.
        x: Pre-activations of any shape that the activation takes.
        registry: Where the activation's closed forms are looked up; the default registry if not given.

    Returns:
        Figures by the names in `STATISTICS`; see `statistics_from_sums` for formulas and units.

    Example:
        >>> x = torch.linspace(-4, 4, 8001, dtype=torch.float64)
        >>> figures = activation_statistics("gelu", x)
        >>> round(figures["mean_gate"], 4), round(figures["share_decreasing"], 4)
        (0.5, 0.4061)
    """
    pivot = mean_of_finite(x)
    figures = statistics_from_sums(activation_sums(activation, x, pivot=pivot, registry=registry), pivot)
    return dict(zip(STATISTICS, figures.tolist(), strict=True))


def mean_of_finite(x: Tensor) -> Tensor:
    """Return the mean of the finite elements, 0 if there are none: a pivot for their moments."""
    x = x.detach()
    finite = x.isfinite()
    summed = torch.where(finite, x, 0).sum(dtype=accumulation_dtype(x.device))
    return summed / finite.sum().clamp(min=1)


def statistics_by_site(
    sites: Iterable[Site], sums: Tensor, pivot: Tensor | float = 0.0
) -> dict[Site, dict[str, float]]:
    """Turn sums into named figures; one transfer to the host.

    Args:
        sites: Names of the sites, in the order of the rows.
        sums: One row a site, the columns of `lit_gelu.curvature.SUMS`.
        pivot: What was subtracted before powers were taken, one number or one for each site.

    Returns:
        Figures by site and name.
    """
    figures = statistics_from_sums(sums, pivot).tolist()
    return {site: dict(zip(STATISTICS, row, strict=True)) for site, row in zip(sites, figures, strict=True)}
