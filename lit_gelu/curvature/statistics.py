"""Statistics of an activation's input: how large it is, and how curved the activation is where it falls.

Everything is a mean over the finite elements x of the pre-activation, so it is kept as sums that add up over calls,
batches and ranks: `activation_sums` makes one row of sums, `statistics_from_sums` turns rows of sums into figures.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.functional import derivative

EPSILON = 0.01
"""How near f' must be to 0 (saturated) or to 1 (linear). It must stay below |min f'|, or f' < 0 counts as saturated."""

Integrand = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

_INTEGRANDS: dict[str, Integrand] = {
    "share_decreasing": lambda _x, _f, first, _second: first < 0,
    "share_saturated": lambda _x, _f, first, _second: first.abs() < EPSILON,
    "share_linear": lambda _x, _f, first, _second: (first - 1).abs() < EPSILON,
    "mean_abs_second_derivative": lambda _x, _f, _first, second: second.abs(),
    "mean_squared_derivative": lambda _x, _f, first, _second: first.square(),
    "mean_gate": lambda x, f, first, _second: torch.where(x == 0, first, f / x),
}
"""What is averaged over the finite x, called with (x, f(x), f'(x), f''(x))."""

SUMS: tuple[str, ...] = ("count", "count_non_finite", "sum", "sum_of_squares", *_INTEGRANDS)
"""The columns of `activation_sums`: finite elements, other elements, sum of x, sum of x^2, each integrand's sum."""

STATISTICS: tuple[str, ...] = ("mean", "standard_deviation", *_INTEGRANDS, "share_non_finite")
"""The names of the figures, in the order of `statistics_from_sums`; monitors log them under these names."""


def activation_sums(
    activation: nn.Module | ActivationSpec | str,
    x: Tensor,
    *,
    stacked: bool = False,
    registry: ActivationRegistry | None = None,
) -> Tensor:
    """Sum, over the elements of a pre-activation, what the statistics are means of.

    With f the activation and x running over the finite elements: the count, the count of NaN and infinite elements, and
    the sums of x, x^2, [f'(x) < 0], [|f'(x)| < 0.01], [|f'(x) - 1| < 0.01], |f''(x)|, f'(x)^2 and the gate
    g(x) = f(x) / x (f'(0) at x = 0). Sums of two inputs add up to the sums of both together.

    The gate has no mean where f(0) != 0 (softplus): its sum is NaN there. f'' is the ordinary second derivative, so a
    jump of f' (ReLU at 0) contributes nothing to |f''|.

    Source: f'^2 as the backward gain is that of Poole et al. 2016, "Exponential expressivity in deep neural networks
    through transient chaos" (arXiv 1606.05340), chi_1 over the variance of the weights.

    Args:
        activation: The activation; of a module, the parameters as they are now.
        x: Pre-activations of any shape that the activation takes. 16-bit inputs are computed in float32; the sums are
            accumulated in float64 (in float32 on devices that have no float64).
        stacked: Whether the first dimension counts sites that share this activation, each to get sums of its own.
        registry: Where the activation's closed forms are looked up; the default registry if not given.

    Returns:
        The columns of `SUMS` on the device of ``x``: shape ``[columns]``, or ``[sites, columns]`` if ``stacked``.

    Example:
        >>> sums = activation_sums("relu", torch.tensor([-1.0, 0.5, 2.0, float("nan")]))
        >>> dict(zip(SUMS[:4], sums.tolist()))
        {'count': 3.0, 'count_non_finite': 1.0, 'sum': 1.5, 'sum_of_squares': 5.25}
    """
    x = x.detach()
    x = x if x.dtype in {torch.float32, torch.float64} else x.float()
    finite = x.isfinite()
    x = torch.where(finite, x, 0)
    precise = x.to(accumulation_dtype(x.device))
    with torch.no_grad():
        f, first, second = (derivative(activation, x, order, registry=registry) for order in (0, 1, 2))
        values = [finite, ~finite, precise, precise.square()]
        values += [torch.where(finite, integrand(x, f, first, second), 0) for integrand in _INTEGRANDS.values()]
        sites = x.shape[0] if stacked else 1
        columns = [value.reshape(sites, -1).sum(1, dtype=precise.dtype) for value in values]
        columns[SUMS.index("mean_gate")] += _nan_unless_gated(activation, x, registry)
    sums = torch.stack(columns, dim=1)
    return sums if stacked else sums[0]


def statistics_from_sums(sums: Tensor) -> Tensor:
    """Turn sums into the figures named in `STATISTICS`.

    ========================== =========================================== =============================
    figure                     formula                                     unit
    ========================== =========================================== =============================
    mean                       E x                                         that of the pre-activation
    standard_deviation         sqrt(E x^2 - (E x)^2), of the population    that of the pre-activation
    share_decreasing           P(f'(x) < 0)                                share of the finite elements
    share_saturated            P(|f'(x)| < 0.01)                           share of the finite elements
    share_linear               P(|f'(x) - 1| < 0.01)                       share of the finite elements
    mean_abs_second_derivative E |f''(x)|, jumps of f' left out            1 / unit of the pre-activation
    mean_squared_derivative    E f'(x)^2, the backward gain                none
    mean_gate                  E f(x) / x, with f'(0) at x = 0             none
    share_non_finite           NaN and infinite elements                   share of all elements
    ========================== =========================================== =============================

    The means are over the finite elements. E |f''| has the smooth part only: of a piecewise linear activation such as
    ReLU, whose curvature sits in the jump of f', it is 0.

    Args:
        sums: The columns of `SUMS` in the last dimension, as `activation_sums` makes them.

    Returns:
        The figures in the last dimension, same dtype and device; NaN where there is nothing to average.

    Example:
        >>> figures = statistics_from_sums(activation_sums("relu", torch.tensor([-3.0, 0.5, 1.0, 1.5])))
        >>> dict(zip(STATISTICS, figures.tolist()))["share_linear"]
        0.75
    """
    count, non_finite, total, squares = sums[..., :4].unbind(-1)
    mean = total / count
    variance = (squares / count - mean.square()).clamp(min=0)
    integrals = sums[..., 4:] / count.unsqueeze(-1)
    share_non_finite = non_finite / (count + non_finite)
    return torch.cat([torch.stack([mean, variance.sqrt()], -1), integrals, share_non_finite.unsqueeze(-1)], -1)


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
    figures = statistics_from_sums(activation_sums(activation, x, registry=registry))
    return dict(zip(STATISTICS, figures.tolist(), strict=True))


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """Return the widest floating-point type that a device computes in.

    Float64 is what makes E x^2 - (E x)^2 a sound variance: the cancellation costs (mean / deviation)^2 times 1e-16.

    Args:
        device: The device of the sums.

    Returns:
        ``torch.float64``, or ``torch.float32`` on Apple's ``mps``.

    Example:
        >>> accumulation_dtype(torch.device("cpu"))
        torch.float64
    """
    return torch.float32 if device.type == "mps" else torch.float64


def _nan_unless_gated(
    activation: nn.Module | ActivationSpec | str, x: Tensor, registry: ActivationRegistry | None
) -> Tensor:
    """Return 0 if f(0) = 0, else NaN: then f(x) / x has no mean over a density that is positive at 0."""
    at_zero = derivative(activation, torch.zeros_like(x[:1] if x.dim() else x), 0, registry=registry)
    return torch.where((at_zero == 0).all(), 0.0, torch.nan)
