"""Statistics of an activation's input: how it is distributed, and how curved the activation is where it falls.

Everything is a mean over the finite elements x of the pre-activation, so it is kept as sums that add up over calls,
batches and ranks: `activation_sums` makes one row of sums, `statistics_from_sums` turns rows of sums into figures.
"""

import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.curvature.activation.derivatives import Derivatives, joint_derivatives
from lit_gelu.curvature.activation.kinks import WINDOW, Jumps, jump_sizes, kinks_of, weighted_window_counts

EPSILON = 0.01
"""How near f' must be to 0 (saturated) or to 1 (linear). It must stay below |min f'|, or f' < 0 counts as saturated."""

Integrand = Callable[[Derivatives], Tensor]

_INTEGRANDS: dict[str, Integrand] = {
    "mean_output": lambda at: at.value,
    "mean_squared_output": lambda at: at.value.square(),
    "mean_derivative": lambda at: at.first,
    "mean_squared_derivative": lambda at: at.first.square(),
    "mean_abs_second_derivative": lambda at: at.second.abs(),
    "mean_gate": lambda at: torch.full_like(at.first, torch.nan) if at.gate is None else at.gate,
    "share_decreasing": lambda at: at.first < 0,
    "share_falling": lambda at: at.first <= -EPSILON,
    "share_saturated": lambda at: at.first.abs() < EPSILON,
    "share_linear": lambda at: (at.first - 1).abs() < EPSILON,
}
"""What is averaged over the finite x, from f, f', f'' and the gate there."""

SUMS: tuple[str, ...] = (
    "count",
    "count_non_finite",
    "sum",
    "sum_of_squares",
    "sum_of_cubes",
    "sum_of_fourth_powers",
    *_INTEGRANDS,
    "kink_mass",
)
"""The columns of `activation_sums`: finite elements, other elements, powers of x - pivot, each integrand's sum."""

STATISTICS: tuple[str, ...] = (
    "mean",
    "standard_deviation",
    "skewness",
    "excess_kurtosis",
    *_INTEGRANDS,
    "kink_mass",
    "share_transition",
    "share_non_finite",
)
"""The names of the figures, in the order of `statistics_from_sums`; monitors log them under these names."""

_GATE = SUMS.index("mean_gate")
_SHARES = frozenset(name for name in _INTEGRANDS if name.startswith("share_"))


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
        x: Pre-activations of any shape that the activation takes. 16-bit inputs are computed in float32; the sums are
            accumulated in float64 (in float32 on devices that have no float64).
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
    registry = activations.registry if registry is None else registry
    module = activation if isinstance(activation, nn.Module) else registry.create(activation).to(x.device)
    sums = measure(module, rows, registry, pivot=pivot, scale=scale).sums
    return sums if stacked else sums[0]


def measure(
    activation: nn.Module,
    x: Tensor,
    registry: ActivationRegistry,
    *,
    pivot: Tensor | float = 0.0,
    scale: Tensor | None = None,
    channel_dim: int | None = None,
) -> Activity:
    """Compute the sums of `activation_sums` and which channels are alive, from one evaluation of the activation.

    Args:
        activation: The activation.
        x: Pre-activations, ``[sites, ...]``; of an activation with parameters of its own there is one site.
        registry: Where closed forms and kinks are looked up.
        pivot: As `activation_sums`.
        scale: As `activation_sums`.
        channel_dim: The dimension of ``x`` that counts channels, if there is one.

    Returns:
        Sums and channels.
    """
    x = x.detach()
    x = x if x.dtype in {torch.float32, torch.float64} else x.float()
    wide = accumulation_dtype(x.device)
    finite = x.abs() < torch.inf
    x = torch.where(finite, x, 0.0)
    with torch.no_grad():
        total = _Total(x.shape[0], wide)
        moments = _moments(x, finite, pivot, total)
        inner = x[0] if x.shape[0] == 1 else x  # a module with channels takes its input as it was
        at = joint_derivatives(activation, registry)(inner)
        at = Derivatives(*(None if part is None else part.reshape(x.shape) for part in at))  # type: ignore[arg-type]
        columns = [*moments, *_integrals(at, finite, moments[1], _integrands_at_zero(activation, registry), total)]
        kinks = kinks_of(activation, registry)
        columns.append(_kink_mass(activation, kinks, x, finite, moments, scale, total, registry))
        alive = None if channel_dim is None else _alive(at.first, finite, channel_dim)
    return Activity(torch.stack(columns, dim=1), alive)


class _Total:
    """Sums over all but the first dimension, in the accumulation type."""

    def __init__(self, sites: int, dtype: torch.dtype) -> None:
        self._sites = sites
        self._dtype = dtype

    def __call__(self, values: Tensor) -> Tensor:
        flat = values.reshape(self._sites, -1)
        if flat.dtype == torch.bool:
            return flat.sum(1).to(self._dtype)
        return flat.sum(1, dtype=self._dtype)


def _moments(x: Tensor, finite: Tensor, pivot: Tensor | float, total: _Total) -> list[Tensor]:
    """Return the counts and the sums of powers of ``x - pivot``."""
    count = total(finite)
    wide = x.to(count.dtype)
    moved = not isinstance(pivot, float) or pivot != 0.0
    if moved:
        shift = pivot.to(wide).reshape(-1, *[1] * (x.dim() - 1)) if isinstance(pivot, Tensor) else pivot
        wide = torch.where(finite, wide - shift, 0.0)
    square = wide * wide
    return [count, x[0].numel() - count, total(wide), total(square), total(square * wide), total(square * square)]


def _integrals(
    at: Derivatives, finite: Tensor, others: Tensor, at_zero: tuple[float, ...] | None, total: _Total
) -> list[Tensor]:
    """Return the sums of the integrands over the finite elements; where x was not finite they were evaluated at 0."""
    if at_zero is not None:  # taking away what the others contribute is one operation, masking them is one of all x
        return [total(f(at)) - others * zero for f, zero in zip(_INTEGRANDS.values(), at_zero, strict=True)]
    columns = []
    for name, integrand in _INTEGRANDS.items():
        values = integrand(at)
        columns.append(total(values & finite if name in _SHARES else torch.where(finite, values, 0.0)))
    return columns


_AT_ZERO: weakref.WeakKeyDictionary[nn.Module, tuple[float, ...]] = weakref.WeakKeyDictionary()


def _integrands_at_zero(activation: nn.Module, registry: ActivationRegistry) -> tuple[float, ...] | None:
    """Return the integrands at x = 0; ``None`` for what has state of its own."""
    if activation not in _AT_ZERO:
        spec = registry.spec_of(activation)
        own_state = any(True for _ in activation.parameters()) or any(True for _ in activation.buffers())
        if spec.opaque or own_state:
            return None
        at = joint_derivatives(activation, registry)(torch.zeros(1))
        values: list[float] = torch.cat([integrand(at).double() for integrand in _INTEGRANDS.values()]).tolist()
        _AT_ZERO[activation] = tuple(values)
    return _AT_ZERO[activation]


def _kink_mass(
    activation: nn.Module,
    kinks: Jumps | None,
    x: Tensor,
    finite: Tensor,
    moments: list[Tensor],
    scale: Tensor | None,
    total: _Total,
    registry: ActivationRegistry,
) -> Tensor:
    """Return the sums of `weighted_window_counts`; 0 without kinks, NaN where they are not known."""
    count, _, first, second = moments[:4]
    if not kinks:
        return torch.full_like(count, torch.nan) if kinks is None else torch.zeros_like(count)
    own = (second / count - (first / count).square()).clamp(min=0).sqrt()
    deviation = own if scale is None else torch.where(scale.isnan(), own, scale.to(own))
    sizes = jump_sizes(activation, kinks, x[0], registry)
    return weighted_window_counts(x, finite, kinks, sizes, WINDOW * deviation, total)


def _alive(first: Tensor, finite: Tensor, channel_dim: int) -> Tensor:
    """Return ``[sites, channels]``: whether any finite element of a channel is not saturated."""
    open_ = (first.abs() >= EPSILON) & finite
    return open_.movedim(channel_dim, 1).flatten(2).any(2) if open_.dim() > 2 else open_


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
    variance = (m2 - m1.square()).clamp(min=0)
    third = m3 - 3 * m1 * m2 + 2 * m1**3
    fourth = m4 - 4 * m1 * m3 + 6 * m1.square() * m2 - 3 * m1**4
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
    """Return the mean of the finite elements, 0 if there are none: a pivot for their moments.

    Args:
        x: Any tensor.

    Returns:
        A scalar of the accumulation type.

    Example:
        >>> mean_of_finite(torch.tensor([1.0, 3.0, float("nan")]))
        tensor(2., dtype=torch.float64)
    """
    x = x.detach()
    finite = x.isfinite()
    total = torch.where(finite, x, 0).sum(dtype=accumulation_dtype(x.device))
    return total / finite.sum().clamp(min=1)


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
