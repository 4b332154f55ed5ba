"""Figures of an activation's input: how it is distributed, and how curved the activation is where it falls.

Everything is a mean over the finite elements x of the pre-activation, so it is kept as sums that add up over calls,
batches and ranks: `activation_sums` makes one row of sums, `statistics_from_sums` turns rows of sums into figures.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.curvature.activation.formulas import Formulas, Intervals, evaluated, formulas_of, jump_sizes

EPSILON = 0.01
"""How near f' must be to 0 (saturated) or to 1 (linear). It must stay below |min f'|, or f' < 0 counts as saturated."""

WINDOW = 0.25
"""Half the width of the window about a kink, in standard deviations of the pre-activation."""

_EXACT = 2**24  # up to here float32 counts without rounding

_POWERS = ("sum", "sum_of_squares", "sum_of_cubes", "sum_of_fourth_powers")
_MEANS = (
    "mean_output",
    "mean_derivative",
    "mean_abs_second_derivative",
    "mean_gate",
    "mean_squared_output",
    "mean_squared_derivative",
)
_SHARES = ("share_decreasing", "share_falling", "share_saturated", "share_linear")

INTEGRANDS: tuple[str, ...] = (*_MEANS, *_SHARES)
"""What is averaged over the finite x, from f, f', f'' and the gate there."""

SUMS: tuple[str, ...] = ("count", "count_non_finite", *_SHARES, *_POWERS, *_MEANS, "kink_mass")
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
    """Return the widest floating-point type that a device computes in: float64, or float32 on Apple's ``mps``."""
    return torch.float32 if device.type == "mps" else torch.float64


class Activity(NamedTuple):
    """The sums of a pre-activation, and which of its channels the activation passes on."""

    sums: Tensor  # the columns of `SUMS`, ``[sites, columns]``
    # ``[sites, channels]``: whether |f'| >= 0.01 at any finite element of the channel; ``None`` without channels.
    alive: Tensor | None


def activation_sums(
    activation: nn.Module | ActivationSpec | str,
    x: Tensor,
    *,
    pivot: Tensor | float = 0.0,
    registry: ActivationRegistry | None = None,
) -> Tensor:
    """Return the columns of `SUMS` for a pre-activation's finite elements, about a pivot; those of parts add up."""
    # 16-bit inputs are computed in float32. Powers of x - pivot are accumulated in float64, all else in the type of the
    # input, pairwise: within 5e-7 in float32. The powers lose ``2 k log10(|mean - pivot| / deviation)`` of 16 digits.
    # The gate has no mean where f(0) != 0 (softplus), so its sum is NaN there; f'' is the ordinary second derivative.
    registry = registry_or_default(registry)
    module = activation if isinstance(activation, nn.Module) else registry.create(activation).to(x.device)
    return measure(formulas_of(module, registry), x.unsqueeze(0), pivot=pivot).sums[0]


@torch.no_grad()
def measure(formulas: Formulas, x: Tensor, *, pivot: Tensor | float = 0.0, channel_dim: int | None = None) -> Activity:
    """Compute the sums of `activation_sums` of ``[sites, ...]``, and which channels are alive, from one evaluation."""
    # Of an activation with parameters of its own there is one site. The number of operations counts: on a GPU each is a
    # kernel, and on a CPU each takes microseconds. What is counted are ones and zeros of the type of x, and not bools:
    # on a CPU comparing and adding numbers is vectorised, and four to ten times as fast.
    x = (x if x.dtype in {torch.float32, torch.float64} else x.float()).contiguous()
    x = x.unsqueeze(1) if x.dim() == 1 else x
    dims, wide_type = tuple(range(1 - x.dim(), 0)), accumulation_dtype(x.device)  # all but the sites
    narrow_type = x.dtype if x[0].numel() <= _EXACT else wide_type  # it adds pairwise: a third of float64's time
    clean = x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    # Few large arrays live at a time: what is free beyond twice the largest one, glibc hands back to the system, and
    # faulting its pages in again takes longer than all of the arithmetic.
    powers_of_x = torch.empty(4, *x.shape, dtype=wide_type, device=x.device)
    wide, square, cube, fourth = powers_of_x
    wide.copy_(clean)
    if isinstance(pivot, Tensor) or pivot != 0.0:
        wide.sub_(pivot).mul_(x.isfinite())
    torch.mul(wide, wide, out=square)
    torch.mul(wide, square, out=cube)
    torch.mul(square, square, out=fourth)
    powers = powers_of_x.sum(dims)
    del powers_of_x, wide, square, cube, fourth
    finite = x.abs().lt_(torch.inf)
    at = evaluated(formulas, clean, finite)
    gate = torch.full_like(clean, torch.nan) if at.gate is None else at.gate
    parts, first = torch.stack([at.value, at.first, at.second.abs(), gate]), at.first
    means = [each.sum(dims, dtype=narrow_type) for each in (parts, parts[:2].square())]
    del at, gate, parts
    plan = _plan(formulas.decreasing, x.dtype, x.device, x.dim())
    ones = torch.empty(1 + len(plan.of_slope) + len(plan.of_x), *x.shape, dtype=x.dtype, device=x.device)
    of_all, of_slope, of_x = torch.split(ones, [1, len(plan.of_slope), len(plan.of_x)])
    of_all.copy_(finite)
    torch.lt(first, plan.of_slope, out=of_slope)
    if len(plan.of_x):
        torch.lt(clean, plan.of_x, out=of_x)
    if formulas.masks:
        of_slope.mul_(finite)
        of_x.mul_(finite)
    counts = torch.addmm(plan.constant, plan.matrix, ones.sum(dims, dtype=narrow_type).to(wide_type), beta=x[0].numel())
    del ones, of_all, of_slope, of_x
    kinks = _kink_mass(formulas, clean, finite, counts, powers)
    columns = torch.cat([counts, powers, *means, kinks])
    if not formulas.masks:  # what the others, which are 0 in `clean`, have added is taken away again
        columns.addr_(_of_one_zero(formulas, x.dtype, x.device), counts[1], alpha=-1)
    alive = None
    if channel_dim is not None and x.numel():
        rest = [dim for dim in range(1, x.dim()) if dim != channel_dim]
        size = first.abs().mul_(finite)
        alive = (size.amax(rest) if rest else size) >= EPSILON
    return Activity(columns.T, alive)


class _Plan(NamedTuple):
    """How the counts of `measure` come of comparisons."""

    of_slope: Tensor  # what f' is compared with, ``[thresholds, 1, ...]``
    of_x: Tensor  # what x is compared with
    matrix: Tensor  # from the counts of finite elements and of those below each threshold to the first six of `SUMS`
    constant: Tensor  # what is added for each element of a site


@lru_cache(maxsize=256)
def _plan(intervals: Intervals | None, dtype: torch.dtype, device: torch.device, dims: int) -> _Plan:
    """Count f' and x below thresholds: f' < 0 by the formula where intervals of x say where that is."""
    # GELU's f' is 0 in float32 from -14 on, and yet it decreases. ``a <= t`` is ``a <`` the number behind t.
    upper = torch.tensor([-EPSILON, 1 - EPSILON], dtype=dtype).nextafter(torch.tensor(torch.inf, dtype=dtype))
    falling, not_linear = upper.tolist()
    of_slope = [falling, EPSILON, not_linear, 1 + EPSILON, *([0.0] if intervals is None else [])]
    ends = [end for interval in intervals or () for end in interval]
    behind = torch.tensor(ends, dtype=dtype).nextafter(torch.tensor(torch.inf, dtype=dtype)).tolist()
    of_x = [high if number % 2 else behind[number] for number, high in enumerate(ends)]
    columns = torch.zeros(6, 1 + len(of_slope) + len(of_x), dtype=torch.float64)
    count, non_finite, decreasing, is_falling, saturated, linear = columns
    count[0], non_finite[0] = 1, -1
    is_falling[1] = saturated[2] = linear[4] = 1
    saturated[1] = linear[3] = -1
    decreasing[5:] = 1
    if intervals is not None:
        decreasing[5::2] = -1
    constant = torch.tensor([[0.0], [1], [0], [0], [0], [0]])
    wide, shape = accumulation_dtype(device), (-1, *[1] * dims)
    return _Plan(
        torch.tensor(of_slope, dtype=dtype, device=device).reshape(shape),
        torch.tensor(of_x, dtype=dtype, device=device).reshape(shape),
        columns.to(device, wide),
        constant.to(device, wide),
    )


def _of_one_zero(formulas: Formulas, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return what one element at 0 adds to each column but those of powers and kinks; worked out once."""
    key = dtype, device
    if key not in formulas.of_one_zero:
        formulas.of_one_zero[key] = torch.zeros(len(SUMS), dtype=accumulation_dtype(device), device=device)
        row = measure(formulas, torch.zeros(1, 1, dtype=dtype)).sums[0]
        row[[0, *(SUMS.index(name) for name in (*_POWERS, "kink_mass"))]] = 0.0
        formulas.of_one_zero[key] = row.to(formulas.of_one_zero[key])
    return formulas.of_one_zero[key]


def _kink_mass(formulas: Formulas, x: Tensor, finite: Tensor, counts: Tensor, powers: Tensor) -> Tensor:
    """Sum ``|jump| [|x - place| <= h] / 2h`` over the finite elements and the kinks; NaN where they are not known."""
    # Divided by the count this estimates the kink mass ``sum_k |jump_k| p(x_k)``, ``p`` the density of the
    # pre-activations: a uniform kernel. Its bias is ``h^2 p''(x_k) / 6`` for each kink to leading order, for a normal
    # density at its mean ``-h^2 / 6 s^2`` of it, which is -1.0 % with `WINDOW`; its variance is ``p / 2hn``.
    #
    # Source: Silverman 1986, Density Estimation for Statistics and Data Analysis, sections 2.3 and 3.3.
    kinks = formulas.kinks
    if not kinks:
        return counts.new_full((1, len(x)), 0.0 if kinks == () else torch.nan)
    count, first, second = counts[0], powers[0], powers[1]
    half_width = WINDOW * (second / count - (first / count).square()).clamp(min=0).sqrt()
    h = half_width.reshape(-1, *[1] * (x.dim() - 1)).to(x.dtype)
    inside = torch.zeros_like(count)
    for (place, _), size in zip(kinks, jump_sizes(formulas.activation, kinks, x[0], formulas.registry), strict=True):
        ones = (x - place).abs_().le_(h).mul_(finite)
        # A size that is a tensor has a number for each channel, and there is one site.
        inside = inside + (ones * size if isinstance(size, Tensor) else ones.mul_(size)).flatten(1).sum(
            1, dtype=count.dtype
        )
    width = torch.where(half_width > 0, 2 * half_width, torch.nan)  # the density of a constant is no number
    return (inside / width)[None]


def statistics_from_sums(sums: Tensor, pivot: Tensor | float = 0.0) -> Tensor:
    """Return the figures named in `STATISTICS` from sums, both in the last dimension; NaN where they are undefined."""
    # On the host, whatever the device: these are some dozen operations on a few numbers.
    table = np.moveaxis(sums.detach().cpu().numpy(), -1, 0)
    count, others = table[SUMS.index("count")], table[SUMS.index("count_non_finite")]
    with np.errstate(all="ignore"):
        means = dict(zip(SUMS, table / count, strict=True))
        m1, m2, m3, m4 = (means[name] for name in _POWERS)
        square = m1 * m1
        variance = np.maximum(m2 - square, 0)
        third = m3 - m1 * (3 * m2 - 2 * square)
        fourth = m4 - m1 * (4 * m3 - m1 * (6 * m2 - 3 * square))
        spread = np.where(variance > 0, variance, np.nan)
        figures = {name: means[name] for name in (*INTEGRANDS, "kink_mass")}
        shares = figures["share_saturated"] + figures["share_linear"] + figures["share_falling"]
        rows = [
            m1 + (pivot.detach().cpu().numpy() if isinstance(pivot, Tensor) else pivot),
            np.sqrt(variance),
            third / spread**1.5,
            fourth / spread**2 - 3,
            *figures.values(),
            np.maximum(1 - shares, 0),
            others / (count + others),
        ]
    return torch.from_numpy(np.stack(rows, -1)).to(sums)


def activation_statistics(
    activation: nn.Module | ActivationSpec | str, x: Tensor, registry: ActivationRegistry | None = None
) -> dict[str, float]:
    """Return the statistics of one pre-activation tensor; one transfer to the host.

    Args:
        activation: The activation; of a module, the parameters as they are now.
        x: Pre-activations of any shape that the activation takes.
        registry: Where the activation's closed forms are looked up; the default registry if not given.

    Returns:
        Figures by the names in `STATISTICS`; docs/curvature.md has formulas and units.

    Example:
        >>> x = torch.linspace(-4, 4, 8001, dtype=torch.float64)
        >>> figures = activation_statistics("gelu", x)
        >>> round(figures["mean_gate"], 4), round(figures["share_decreasing"], 4)
        (0.5, 0.4061)
    """
    pivot = x.detach()[x.isfinite()].mean(dtype=accumulation_dtype(x.device)).nan_to_num(nan=0.0)
    figures = statistics_from_sums(activation_sums(activation, x, pivot=pivot, registry=registry), pivot)
    return dict(zip(STATISTICS, figures.tolist(), strict=True))


def statistics_by_site(sites: Iterable[str], sums: Tensor) -> dict[str, dict[str, float]]:
    """Return sums, a row a site, as figures by site and name."""
    figures = statistics_from_sums(sums).tolist()
    return {site: dict(zip(STATISTICS, row, strict=True)) for site, row in zip(sites, figures, strict=True)}


def statistic_of(values: Mapping[str, float], name: str) -> float:
    """Return a site's statistic, NaN if it has none; "curvature" is |f''| and the kink mass, to compare activations."""
    nothing = float("nan")
    if name == "curvature":
        return values.get("mean_abs_second_derivative", nothing) + values.get("kink_mass", nothing)
    return values.get(name, nothing)
