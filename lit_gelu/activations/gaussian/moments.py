"""`GaussianMoments`: what an activation makes of normally distributed pre-activations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lit_gelu.activations.differentiation import derivative
from lit_gelu.activations.gaussian.normal import density
from lit_gelu.activations.gaussian.quadrature import normal_rule
from lit_gelu.activations.sampling import sign_changes

if TYPE_CHECKING:
    from lit_gelu.activations.registry import ActivationRegistry

_ROUNDED = 1e-28  # a variance this much smaller than the square is that of float64's last digit: f is constant


@dataclass(frozen=True)
class GaussianMoments:
    """Expectations over ``x ~ N(mean, std^2)``; every field is a float64 tensor of the broadcast shape of mean and std.

    Args:
        value: ``E f``.
        value_squared: ``E f^2``; ``1 / sqrt`` of it is the forward gain.
        variance: ``E f^2 - (E f)^2``; ``1 / sqrt`` of it is the variance gain.
        derivative: ``E f'``.
        derivative_squared: ``E f'^2``; times the weights' variance, the factor by which a layer scales squared
            gradients.
        abs_second_derivative: ``E |f''|``, the smooth part: what `kink` adds is not in it.
        kink: ``sum |jump of f'| p(x)`` over the kinks, ``p`` the density of x: the part of E|f''| that sits in kinks.
    """

    value: Tensor
    value_squared: Tensor
    variance: Tensor
    derivative: Tensor
    derivative_squared: Tensor
    abs_second_derivative: Tensor
    kink: Tensor

    @property
    def fields(self) -> tuple[Tensor, ...]:
        """All of them, in the order above."""
        return tuple(vars(self).values())


def quadrature_moments(
    module: nn.Module,
    mean: Tensor,
    std: Tensor,
    kinks: Sequence[tuple[float, float]] = (),
    *,
    registry: "ActivationRegistry | None" = None,
) -> GaussianMoments:
    """Return the moments of any elementwise activation by adaptive quadrature; see `quadrature.normal_rule`.

    ``E f^2``, ``E f'^2`` and the variance are sums of positive terms, so they are accurate to 1e-12 of themselves
    however small they are. `kink` counts the declared kinks alone.

    Args:
        module: The activation, in float64.
        mean: Of the pre-activations, float64.
        std: Their standard deviation.
        kinks: ``(x, jump of f')``.
        registry: Where closed forms of the derivatives are looked up.

    Returns:
        The moments.

    Raises:
        NoGaussianMomentsError: If the function or a derivative is not finite, or not a function at all.

    Example:
        >>> mean, std = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
        >>> moments = quadrature_moments(nn.SiLU(), mean, std)
        >>> round(moments.value_squared.item(), 8), round(moments.abs_second_derivative.item(), 8)
        (0.35577552, 0.35145571)
    """
    mean, std = mean + torch.zeros_like(std), std + torch.zeros_like(mean)

    def bend(x: Tensor) -> Tensor:
        return derivative(module, x, 2, registry=registry).detach()

    def values(x: Tensor) -> Tensor:
        f, slope = (derivative(module, x, order, registry=registry).detach() for order in (0, 1))
        return torch.stack([f, f * f, slope, slope * slope, bend(x)])

    places = [place for place, _ in kinks]
    rows = []
    for m, s in zip(mean.flatten().tolist(), std.flatten().tolist(), strict=True):
        x, weights = normal_rule(values, m, s, places)
        at_nodes = values(x)
        f, f_squared, slope, slope_squared, _ = (at_nodes @ weights).unbind()
        variance = (at_nodes[0] - f).square() @ weights
        variance = torch.where(variance > _ROUNDED * f_squared, variance, 0.0)
        abs_bend = _expectation_of_size(bend, m, s, places, x)
        rows.append(torch.stack([f, f_squared, variance, slope, slope_squared, abs_bend]))
    columns = torch.stack(rows).reshape(*mean.shape, -1).unbind(-1) if rows else (mean,) * 6
    return GaussianMoments(*(*columns, kink_mass(mean, std, kinks)))


def _expectation_of_size(g: Callable[[Tensor], Tensor], m: float, s: float, places: list[float], x: Tensor) -> Tensor:
    """Return ``E |g|``, split where g changes sign between two nodes: a corner next to a panel's end goes unseen."""
    grid = x.sort().values
    values = g(grid)
    turns = sign_changes(g, grid, values, values.abs() > 1e-12 * values.abs().max())
    nodes, weights = normal_rule(lambda x: g(x).abs()[None], m, s, [*places, *turns])
    return torch.dot(g(nodes).abs(), weights)


def kink_mass(mean: Tensor, std: Tensor, kinks: Sequence[tuple[float, float]]) -> Tensor:
    """Return ``sum |jump| p(x)`` over kinks, ``p`` the density of ``N(mean, std^2)``.

    Args:
        mean: Of the pre-activations, float64.
        std: Their standard deviation.
        kinks: ``(x, jump of f')``.

    Returns:
        A tensor of the broadcast shape.
    """
    total = torch.zeros_like(mean + std)
    for place, jump in kinks:
        total = total + abs(jump) * density((place - mean) / std) / std
    return total
