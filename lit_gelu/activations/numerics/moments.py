"""`GaussianMoments`: what an activation makes of normally distributed pre-activations."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_gelu.activations.numerics.normal import density


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
