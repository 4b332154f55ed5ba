"""``f``, ``f'``, ``f''`` and the gate of an activation together: by its joint form, or one by one."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.functional import derivative
from lit_gelu.activations.numerics.joint import Derivatives, quotient


def joint_derivatives(activation: nn.Module, registry: ActivationRegistry) -> Callable[[Tensor], Derivatives]:
    """Return the function that evaluates an activation and its derivatives together.

    Args:
        activation: The activation; its parameters are used as they are when the result is called.
        registry: Where it is looked up.

    Returns:
        A function of a float32 or float64 tensor. For activations without a joint form it evaluates the registered
        closed forms one by one, or differentiates; then the gate is NaN throughout where f(0) is not 0.

    Example:
        >>> from lit_gelu.activations import registry
        >>> found = joint_derivatives(nn.GELU(), registry)(torch.tensor([0.0, 1.0], dtype=torch.float64))
        >>> [round(value, 8) for value in found.first.tolist()], [round(value, 8) for value in found.second.tolist()]
        ([0.5, 1.08331547], [0.79788456, 0.24197072])
    """
    entry = registry.entry_of(activation)
    has_state = any(True for _ in activation.parameters()) or any(True for _ in activation.buffers())
    if entry is not None and entry.joint is not None and not has_state:
        joint, arguments = entry.joint, entry.live_arguments(activation)
        if arguments is not None:
            return lambda x: Derivatives(*joint(x, **arguments))
    return lambda x: _one_by_one(activation, x, registry)


def _one_by_one(activation: nn.Module, x: Tensor, registry: ActivationRegistry) -> Derivatives:
    value, first, second = (derivative(activation, x, order, registry=registry).detach() for order in (0, 1, 2))
    at_zero = derivative(activation, torch.zeros_like(x[:1] if x.dim() else x), 0, registry=registry).detach()
    gate = quotient(value, x, first) + torch.where((at_zero == 0).all(), 0.0, torch.nan)
    return Derivatives(value, first, second, gate)
