"""Signals and gradients in deep nets: the mean-field maps of wide layers with random weights.

For layers ``x' = W f(x) + b`` with ``W ~ N(0, weight_variance / fan_in)`` and ``b ~ N(0, bias_variance)``, the
pre-activations of wide layers are normal with mean 0, and their variance q and the size of gradients follow

* ``q' = weight_variance E f(sqrt(q) z)^2 + bias_variance`` (the variance map),
* ``chi_1 = weight_variance E f'(sqrt(q) z)^2`` (a layer's factor on mean squared gradients, and on small differences
  between two inputs of the same length),
* ``chi_q = dq' / dq = weight_variance E[x f f'] / q`` (a fixed point of q is stable if it is below 1).

Source: Poole et al. 2016 (arXiv 1606.05340) and Schoenholz et al. 2017 (arXiv 1611.01232).
With the forward gain q = 1 is a fixed point of every activation, and an unstable one of GELU (chi_q = 1.144), SiLU
(1.173), Mish (1.076) and hard Swish (1.224): a plain net drifts away from it, one with normalisation layers does not.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lit_gelu.activations.errors import ActivationArgumentError, NoGaussianMomentsError
from lit_gelu.activations.gaussian import gaussian_moments, normal_rule, scalar_function
from lit_gelu.activations.naming.names import Names
from lit_gelu.activations.naming.scalar import derivatives_of
from lit_gelu.activations.naming.spec import quoted
from lit_gelu.display import Displayed, HtmlTable, count_of

__all__ = [
    "CriticalVariances",
    "DepthProfile",
    "chi",
    "edge_of_chaos",
    "propagate",
    "variance_map",
    "variance_slope",
]

_ROUNDING = 1e-12  # a bias variance this small beside q is 0 (ReLU's, the identity's)


@dataclass(frozen=True, repr=False)
class DepthProfile(Displayed):
    """What `propagate` returns.

    Args:
        q: Variance of the pre-activations of layers 1, 2, ...: the given one first, then one for every further layer.
        chi: Between each layer and the next, the factor ``chi_1`` on mean squared gradients; one fewer than ``q``.
    """

    q: tuple[float, ...]
    chi: tuple[float, ...]

    @property
    def gradient_ratio(self) -> float:
        """Mean squared gradient at the first pre-activations over that at the last: the product of ``chi``."""
        return math.prod(self.chi)

    def _summary(self) -> str:
        ends = f"q {self.q[0]:.4g} to {self.q[-1]:.4g}" if self.q else "no layer"
        return f"{count_of(len(self.q), 'layer')}: {ends}, gradient_ratio {self.gradient_ratio:.4g}"

    def _html_table(self) -> HtmlTable:
        rows = [(number + 1, q, dict(enumerate(self.chi)).get(number)) for number, q in enumerate(self.q)]
        return HtmlTable(("layer", "q", "chi to the next"), rows, f"gradient ratio {self.gradient_ratio:.6g}")


@dataclass(frozen=True, repr=False)
class CriticalVariances(Displayed):
    """What `edge_of_chaos` returns.

    Args:
        weight_variance: Times ``1 / fan_in`` the variance of the weights.
        bias_variance: The variance of the biases.
    """

    weight_variance: float
    bias_variance: float


def variance_map(
    activation: Any,
    q: float,
    weight_variance: float,
    bias_variance: float = 0.0,
    *,
    registry: Names | None = None,
) -> float:
    """Return the variance of the next layer's pre-activations: ``weight_variance E f(sqrt(q) z)^2 + bias_variance``.

    Args:
        activation: Any spec of an elementwise activation.
        q: Variance of this layer's pre-activations, positive.
        weight_variance: Times ``1 / fan_in`` the variance of the weights; the square of a gain.
        bias_variance: The variance of the biases.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        The variance.

    Raises:
        ActivationArgumentError: If ``q`` is not positive, a variance negative, or the activation not elementwise.

    Example:
        >>> round(variance_map("relu", 3.0, weight_variance=2.0), 12)
        3.0
        >>> round(variance_map("gelu", 1.0, weight_variance=1.533530**2), 6)
        0.999999
    """
    std = _checked_std(q, weight_variance, bias_variance)
    moments = gaussian_moments(activation, 0.0, std, registry=registry)
    return weight_variance * moments.value_squared.item() + bias_variance


def chi(activation: Any, q: float, weight_variance: float, *, registry: Names | None = None) -> float:
    """Return ``chi_1 = weight_variance E f'(sqrt(q) z)^2``, a layer's factor on mean squared gradients.

    Args:
        activation: Any spec of an elementwise activation.
        q: Variance of the pre-activations, positive.
        weight_variance: Times ``1 / fan_in`` the variance of the weights.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        The factor: above 1 gradients grow from layer to layer, below 1 they fade.

    Raises:
        ActivationArgumentError: As for `variance_map`.

    Example:
        >>> round(chi("relu", 3.0, weight_variance=2.0), 12)
        1.0
        >>> round(chi("gelu", 1.0, weight_variance=1.533530**2), 4)
        1.072
    """
    std = _checked_std(q, weight_variance, 0.0)
    return weight_variance * gaussian_moments(activation, 0.0, std, registry=registry).derivative_squared.item()


def variance_slope(activation: Any, q: float, weight_variance: float, *, registry: Names | None = None) -> float:
    """Return ``chi_q``, the slope of the variance map: ``weight_variance E[x f(x) f'(x)] / q``, ``x ~ N(0, q)``.

    Args:
        activation: Any spec of an elementwise activation.
        q: Where; a fixed point is stable if the slope there is below 1.
        weight_variance: Times ``1 / fan_in`` the variance of the weights.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        The slope. Where ``f(0) f'(0)`` is not 0, as for softplus, its error is some ``1e-17 / sqrt(q)``.

    Raises:
        ActivationArgumentError: As for `variance_map`.

    Example:
        >>> round(variance_slope("gelu", 1.0, weight_variance=1.533530**2), 3)
        1.144
    """
    std = _checked_std(q, weight_variance, 0.0)
    module, kinks = scalar_function(activation, registry=registry)

    derivatives = derivatives_of(module, registry)

    def integrand(x: Tensor) -> Tensor:
        return (x * derivatives(x, 0).detach() * derivatives(x, 1).detach())[None]

    x, weights = normal_rule(integrand, 0.0, std, [place for place, _ in kinks])
    return weight_variance * torch.dot(weights, integrand(x)[0]).item() / q


def propagate(
    activation: Any,
    depth: int,
    q0: float = 1.0,
    weight_variance: float = 1.0,
    bias_variance: float = 0.0,
    *,
    registry: Names | None = None,
) -> DepthProfile:
    """Return q and chi_1 in every layer of a deep, wide, plain net.

    Args:
        activation: Any spec of an elementwise activation.
        depth: How many layers follow the first.
        q0: Variance of the first layer's pre-activations, positive.
        weight_variance: Times ``1 / fan_in`` the variance of the weights.
        bias_variance: The variance of the biases.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        ``depth + 1`` variances and ``depth`` factors.

    Raises:
        ActivationArgumentError: As for `variance_map`, or if ``depth`` is negative.
        NoGaussianMomentsError: If q leaves the range of float64; the message says in which layer.

    Example:
        >>> profile = propagate("gelu", 39, q0=0.8, weight_variance=1.533530**2)
        >>> f"{profile.q[-1]:.1g}"
        '6e-07'
    """
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
        raise ActivationArgumentError(f"depth={depth!r} is not accepted: give a whole number of layers, 0 or more.")
    _checked_std(q0, weight_variance, bias_variance)
    variances, factors = [float(q0)], []
    for layer in range(1, depth + 1):
        moments = gaussian_moments(activation, 0.0, math.sqrt(variances[-1]), registry=registry)
        factors.append(weight_variance * moments.derivative_squared.item())
        variances.append(weight_variance * moments.value_squared.item() + bias_variance)
        if not 0.0 < variances[-1] < math.inf:
            raise NoGaussianMomentsError(
                f"q is {variances[-1]} in layer {layer + 1} of {depth + 1}, so nothing reaches the layers after it. "
                "Give fewer layers or other variances; see edge_of_chaos."
            )
    return DepthProfile(tuple(variances), tuple(factors))


def edge_of_chaos(activation: Any, q: float = 1.0, *, registry: Names | None = None) -> CriticalVariances:
    """Return the variances at which q is a fixed point and gradients neither grow nor fade there (``chi_1 = 1``).

    ``weight_variance = 1 / E f'^2`` and ``bias_variance = q - E f^2 / E f'^2``, with ``x ~ N(0, q)``. The fixed point
    may still be unstable, less so than with the forward gain: chi_q is 1.067 for GELU, 1.099 for SiLU, 1.016 for Mish
    and 1.132 for hard Swish at q = 1.

    Args:
        activation: Any spec of an elementwise activation.
        q: The variance of the pre-activations to keep, positive.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        The variances.

    Raises:
        ActivationArgumentError: If there is no such point at this q (the bias variance would be negative), or as for
            `variance_map`.
        NoGaussianMomentsError: If ``E f'^2`` is 0 at this q.

    Example:
        >>> round(edge_of_chaos("gelu").weight_variance, 6), round(edge_of_chaos("gelu").bias_variance, 6)
        (2.1937, 0.067192)
    """
    moments = gaussian_moments(activation, 0.0, _checked_std(q, 1.0, 0.0), registry=registry)
    value, slope = moments.value_squared.item(), moments.derivative_squared.item()
    if not slope > 0.0:
        raise NoGaussianMomentsError(
            f"{quoted(activation)} has no edge of chaos at q={q:g}: E f'^2 is {slope:g}, so no gradient comes through "
            "it. Use another activation or another q."
        )
    if value > q * slope * (1 + _ROUNDING):
        raise ActivationArgumentError(
            f"{quoted(activation)} has no edge of chaos at q={q:g}: E f^2 = {value:.6g} exceeds q E f'^2 = "
            f"{q * slope:.6g}, so the variance of the biases would be negative. Accepted: activations and q with "
            "E f^2 <= q E f'^2. Use a gain instead, or another q."
        )
    bias_variance = q - value / slope
    return CriticalVariances(1.0 / slope, bias_variance if bias_variance > _ROUNDING * q else 0.0)


def _checked_std(q: float, weight_variance: float, bias_variance: float) -> float:
    """Return the square root of q."""
    if not (0.0 < q < math.inf and 0.0 <= weight_variance < math.inf and 0.0 <= bias_variance < math.inf):
        raise ActivationArgumentError(
            f"q={q!r}, weight_variance={weight_variance!r}, bias_variance={bias_variance!r} is not accepted: q must be "
            "positive, the variances 0 or positive, all finite."
        )
    return math.sqrt(q)
