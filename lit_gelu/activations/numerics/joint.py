"""What a joint form returns: ``f``, ``f'``, ``f''`` and the gate of an activation, with shared terms.

The functions of `lit_gelu.activations.functional` are exact to the last digit, and each derivative is computed by
itself. A mean over a sample and a 16-bit number need six digits, so in a joint form the three share their terms: an
error function or a sigmoid is evaluated once. In float32 they are within 2e-6 of ``max(1, |x|)`` (f) and of 1 (f', f'',
gate) of the exact values, and f and f' have the tails of the exact ones down to 1e-36.
"""

from typing import NamedTuple

import torch
from torch import Tensor

# Beyond these every f' and f'' of the joint forms is constant to float32's last digit; their squares and cubes are
# finite.
NORMAL_END = 30.0
LOGISTIC_END = 104.0  # where float32's logistic function ends


class Derivatives(NamedTuple):
    """What an activation does at each element of its input."""

    value: Tensor  # ``f(x)``
    first: Tensor  # ``f'(x)``; at a kink that of one side
    second: Tensor  # ``f''(x)``, without what sits in kinks
    # ``f(x) / x``, with ``f'(0)`` at ``x = 0``; ``None`` where f(0) is not 0, so that it has no mean.
    gate: Tensor | None


def gated(x: Tensor, gate: Tensor, shut: Tensor) -> Tensor:
    """Return ``x * gate``, but 0 where the gate is shut, at minus infinity too."""
    return torch.where(shut, 0.0, x * gate)


def quotient(value: Tensor, x: Tensor, at_zero: Tensor | float) -> Tensor:
    """Return ``value / x``, with its limit at ``x = 0``."""
    return torch.where(x == 0, at_zero, value / x)
