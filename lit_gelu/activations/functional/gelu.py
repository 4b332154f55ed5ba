"""GELU in its three forms: exact, tanh and sigmoid."""

import math

import torch
from torch import Tensor

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.functional._arguments import check_order, elementwise
from lit_gelu.activations.functional._compensated import product_error, sum_error
from lit_gelu.activations.functional._gates import (
    LOGISTIC_LIMIT,
    NORMAL_LIMIT,
    logistic_curvature,
    logistic_plus_density,
    normal_cdf_plus_density,
    opened_logistic_gate,
    opened_normal_gate,
    times_normal_density,
)
from lit_gelu.activations.functional.swish import swish, swish_derivative

FORMS = ("none", "tanh", "sigmoid")
SIGMOID_SLOPE = 1.702  # Hendrycks and Gimpel 2016, section 2
# The tanh form's gate is (1 + tanh w) / 2 = s(2 w), with 2 w = TANH_SLOPE x + TANH_CUBIC x**3; 0.044715: ibidem.
TANH_SLOPE = 2.0 * math.sqrt(2.0 / math.pi)
TANH_CUBIC = 0.044715 * TANH_SLOPE


@elementwise
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Gaussian error linear unit: ``x`` times the probability that a standard normal variable is below ``x``.

    * ``"none"``: ``x Phi(x)``, computed with ``erfc``, which keeps the relative accuracy of the left tail;
    * ``"tanh"``: ``x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))) / 2``, at most 4.74e-4 from exact;
    * ``"sigmoid"``: ``x s(1.702 x)``, at most 2.04e-2 from exact.

    Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units (GELUs)" (arXiv 1606.08415), section 2.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        approximate: Which form: ``"none"``, ``"tanh"`` or ``"sigmoid"``.

    Returns:
        A tensor like ``x``. ``f(inf) = inf`` and ``f(-inf) = 0``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor or ``approximate`` not one of the three.

    Example:
        >>> import torch
        >>> x = torch.tensor([-10.0, -1.0, 0.0, 1.0], dtype=torch.float64)
        >>> [f"{value:.5e}" for value in gelu(x).tolist()]
        ['-7.61985e-23', '-1.58655e-01', '0.00000e+00', '8.41345e-01']
        >>> gelu(x[3:], approximate="tanh")
        tensor([0.8412], dtype=torch.float64)
    """
    _check_form("gelu", approximate)
    if approximate == "none":
        return opened_normal_gate(x, x)
    if approximate == "sigmoid":
        return swish(x, SIGMOID_SLOPE)
    bounded = x.clamp(-NORMAL_LIMIT, NORMAL_LIMIT)
    return opened_logistic_gate(x, bounded * (TANH_SLOPE + TANH_CUBIC * (bounded * bounded)))


@elementwise
def gelu_derivative(x: Tensor, order: int = 1, approximate: str = "none") -> Tensor:
    """First or second derivative of `gelu`.

    * ``"none"``: ``f' = Phi(x) + x phi(x)``, ``f'' = (2 - x**2) phi(x)``;
    * ``"tanh"``: with ``u = 2 sqrt(2 / pi) (x + 0.044715 x**3)``, ``p = s(u)`` and ``q = s(u) s(-u)``:
      ``f' = p + x u' q``, ``f'' = q (2 u' + x (u'' - u'**2 tanh(u / 2)))``;
    * ``"sigmoid"``: see `swish_derivative`.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        order: 1 or 2.
        approximate: Which form: ``"none"``, ``"tanh"`` or ``"sigmoid"``.

    Returns:
        A tensor like ``x``. ``f'(inf) = 1``, ``f'(-inf) = 0`` and ``f''(+-inf) = 0``.

    Raises:
        ActivationArgumentError: If ``x``, ``order`` or ``approximate`` is none of those.

    Example:
        >>> import torch
        >>> x = torch.tensor([-1.0, 0.0, 1.0])
        >>> gelu_derivative(x), gelu_derivative(x, order=2)
        (tensor([-0.0833,  0.5000,  1.0833]), tensor([0.2420, 0.7979, 0.2420]))
    """
    _check_form("gelu_derivative", approximate)
    check_order("gelu_derivative", order)
    if approximate == "sigmoid":
        return swish_derivative(x, order, SIGMOID_SLOPE)
    x = x.clamp(-NORMAL_LIMIT, NORMAL_LIMIT)
    if approximate == "tanh":
        return _tanh_form_derivative(x, order)
    return normal_cdf_plus_density(x, x) if order == 1 else times_normal_density(2.0 - x * x, x)


_Inexact = tuple[Tensor, Tensor]  # a value and its rounding error, to first order


def _slope(x: Tensor, cubic: float) -> _Inexact:
    """Return ``TANH_SLOPE + cubic x**2``."""
    square = x * x
    small = cubic * square
    small_error = cubic * product_error(x, x) + product_error(square, cubic)
    return TANH_SLOPE + small, sum_error(TANH_SLOPE, small) + small_error


def _times(x: Tensor, factor: _Inexact) -> _Inexact:
    """Return ``x * factor`` for an exact ``x``."""
    value, error = factor
    return x * value, x * error + product_error(x, value)


def _product(a: _Inexact, b: _Inexact) -> _Inexact:
    """Return ``a * b``."""
    return a[0] * b[0], product_error(a[0], b[0]) + a[0] * b[1] + a[1] * b[0]


def _slope_correction(u: _Inexact, first: _Inexact) -> Tensor:
    """Return what ``s(u) + first s'(u)`` lacks for want of the errors of both, in units of ``s'(u)``."""
    return first[1] + u[1] * (1.0 - first[0] * torch.tanh(0.5 * u[0]))


def _tanh_form_derivative(x: Tensor, order: int) -> Tensor:
    """Return ``f'`` or ``f''`` of the tanh form for bounded ``x``, whose cube would overflow."""
    x = x if order == 1 else x.abs()  # f'' is even
    u, u_error = _times(x, _slope(x, TANH_CUBIC))
    u = u.clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT)
    u_slope = _slope(x, 3.0 * TANH_CUBIC)
    first = _times(x, u_slope)
    if order == 1:
        return logistic_plus_density(first[0], u, _slope_correction((u, u_error), first))
    start, start_error = (2.0 * part for part in _slope(x, 6.0 * TANH_CUBIC))  # 2 u' + x u''
    curved, curved_error = _product(first, u_slope)  # x u'**2
    # A shift of u scales exp(-|u|); its effect on the terms that are exp(-|u|) smaller again is left out.
    shift = u_error * (start - curved)
    return logistic_curvature(start, curved, u, correction=start_error - curved_error - shift)


def _check_form(name: str, approximate: str) -> None:
    """Refuse a form of GELU that does not exist.

    Raises:
        ActivationArgumentError: If it does not.
    """
    if approximate not in FORMS:
        accepted = ", ".join(repr(form) for form in FORMS)
        raise ActivationArgumentError(
            f"{name}: approximate={approximate!r} is not a form of GELU. Use one of {accepted}."
        )
