"""Figures of an activation's input: how it is distributed, and how curved the activation is where it falls.

Everything is a mean over the finite elements x of the pre-activation, so it is kept as sums that add up over calls,
batches and ranks: `activation_sums` makes one row of sums, `statistics_from_sums` turns rows of sums into figures.
"""

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.curvature.activation.sums import INTEGRANDS, SUMS, activation_sums
from lit_gelu.curvature.activation.totals import accumulation_dtype

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
