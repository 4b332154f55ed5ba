"""A distribution given as an object: its distribution function, density and the density's slope, elementwise.

``torch.distributions`` computes outside a distribution's support what its formula gives there, or refuses. Here ``F``
is 0 or 1 there and the density 0, and what is not a number stays so.
"""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.numerics.arguments import keep_nan


def cumulative(distribution: Any, x: Tensor) -> Tensor:
    """Return ``F(x)``."""
    if _is_mixture(distribution):
        return _mixed(cumulative, distribution, x)
    inside, safe = _within_support(distribution, x)
    value = _called(distribution, "cdf", safe)
    return keep_nan(x, torch.where(inside, value, (x > safe).to(x.dtype)))


def density(distribution: Any, x: Tensor) -> Tensor:
    """Return ``p(x)``: ``pdf``, else ``exp(log_prob)``, else the derivative of ``cdf`` by autograd."""
    if _is_mixture(distribution):
        return _mixed(density, distribution, x)
    inside, safe = _within_support(distribution, x)
    return keep_nan(x, torch.where(inside, _density_within(distribution, safe), 0.0))


def density_slope(distribution: Any, x: Tensor) -> Tensor:
    """Return ``p'(x)`` by autograd of the density."""
    if _is_mixture(distribution):
        return _mixed(density_slope, distribution, x)
    inside, safe = _within_support(distribution, x)
    slope = _gradient(lambda value: _density_within(distribution, value), safe)
    return keep_nan(x, torch.where(inside, slope, 0.0))


def _is_mixture(distribution: Any) -> bool:
    """Say whether it is torch's mixture of distributions of one number."""
    mixture = isinstance(distribution, torch.distributions.MixtureSameFamily)
    return mixture and not distribution.batch_shape and not distribution.event_shape


def _mixed(function: Callable[[Any, Tensor], Tensor], mixture: Any, x: Tensor) -> Tensor:
    """Return a function of a mixture as the mean of that of its components, each with a support of its own."""
    weights = mixture.mixture_distribution.probs
    parts = function(mixture.component_distribution, x.unsqueeze(-1).expand(*x.shape, len(weights)))
    mean: Tensor = (parts * weights).sum(-1)
    return mean


def _density_within(distribution: Any, x: Tensor) -> Tensor:
    """Return the density of points inside the support."""
    if callable(getattr(distribution, "pdf", None)):
        return _called(distribution, "pdf", x)
    if callable(getattr(distribution, "log_prob", None)):
        return torch.exp(_called(distribution, "log_prob", x))
    return _gradient(lambda value: _called(distribution, "cdf", value), x)


def _gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the derivative of an elementwise function."""
    gradient: Tensor = torch.func.grad(lambda value: function(value).sum())(x)
    return gradient


def _called(distribution: Any, method: str, x: Tensor) -> Tensor:
    """Call a method and check what it returns."""
    value = getattr(_unvalidated(distribution), method)(x)
    if not isinstance(value, Tensor) or value.shape != x.shape:
        kind = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ActivationArgumentError(
            f"cdf_linear: {type(distribution).__name__}.{method} made {kind} of a tensor of shape {tuple(x.shape)}. "
            "It must be a function from tensor to tensor, elementwise: give a distribution of one number that computes "
            "with torch, not a batch of them."
        )
    return value


def _unvalidated(distribution: Any) -> Any:
    """Return a distribution of torch without its checks: a transformed point may round to the edge of the support."""
    if not isinstance(distribution, torch.distributions.Distribution) or not distribution._validate_args:
        return distribution
    twin = copy.copy(distribution)
    twin._validate_args = False
    if hasattr(twin, "base_dist"):
        twin.base_dist = _unvalidated(twin.base_dist)
    return twin


def _within_support(distribution: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return which elements are inside the support, and ``x`` with a point of the support in place of the others."""
    # ``x > point`` then tells whether such an element is right or left of the support. Infinities count as outside: a
    # distribution's own formula may make NaN of them.
    support = getattr(distribution, "support", None)
    low, high = getattr(support, "lower_bound", -math.inf), getattr(support, "upper_bound", math.inf)
    point = _between(low, high)
    inside = (x > low) & (x < high)
    return inside, torch.where(inside, x, point)


def _between(low: float | Tensor, high: float | Tensor) -> float | Tensor:
    """Return a number within two bounds, of which either may be missing, that is, infinite."""
    if isinstance(low, float) and math.isinf(low):
        return 0.0 if isinstance(high, float) and math.isinf(high) else high - 1.0
    return low + 1.0 if isinstance(high, float) and math.isinf(high) else low + 0.5 * (high - low)
