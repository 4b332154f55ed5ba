"""An activation as functions of one float64 number, whatever it was given as."""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.activations.analysis.differentiation import derivative
from lit_gelu.activations.analysis.sampling import Function
from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.naming.names import Names, default_names
from lit_gelu.activations.numerics.channels import ChannelModule


@dataclass(frozen=True)
class ScalarActivation:
    """An elementwise activation as functions from float64 tensors of shape ``(N,)`` to the same.

    Args:
        spec: Its canonical spec, as text.
        functions: ``f``, ``f'`` and ``f''``.
        kinks: Where ``f'`` jumps, as far as it is stated.
    """

    spec: str
    functions: tuple[Function, Function, Function]
    kinks: tuple[float, ...]

    @classmethod
    def of(cls, spec: Any, registry: Names | None) -> "ScalarActivation":
        """Build it.

        Args:
            spec: Any spec, or a module, whose parameters are then used as they are now.
            registry: Where names are looked up; by default `lit_gelu.activations.registry`.

        Returns:
            The activation.

        Raises:
            ActivationArgumentError: If it is not elementwise, or its channels differ.

        Example:
            >>> ScalarActivation.of("hard_swish", None).kinks
            (-3.0, 3.0)
        """
        registry = registry or default_names()
        canonical = registry.resolve(spec)
        kinks: tuple[float, ...] = ()
        if not canonical.opaque:
            facts = registry.entry(canonical.name).facts_for(canonical.arguments)
            if not facts.elementwise:
                raise ActivationArgumentError(f"{canonical} is not elementwise: it is no function of one number.")
            kinks = tuple(x for x, _ in facts.kinks)
        return cls(str(canonical), scalar_functions(registry.create(spec), registry=registry), kinks)


def scalar_functions(module: nn.Module, *, registry: Names | None = None) -> tuple[Function, Function, Function]:
    """Return ``f``, ``f'`` and ``f''`` of an elementwise module as functions of float64 numbers.

    Args:
        module: The activation; it is copied. A parameter with the same value for every channel stands for that value.
        registry: Where the closed forms are looked up.

    Returns:
        Three functions from float64 tensors of shape ``(N,)`` to the same.

    Raises:
        ActivationArgumentError: If the channels have different values, or the module is not elementwise.

    Example:
        >>> f, slope, bend = scalar_functions(nn.ReLU())
        >>> f(torch.tensor([-1.0, 2.0], dtype=torch.float64))
        tensor([0., 2.], dtype=torch.float64)
    """
    module = copy.deepcopy(module).to("cpu", torch.float64).eval()
    keep_one_channel_(module, registry=registry)

    def of_order(order: int) -> Function:
        def evaluate(x: Tensor) -> Tensor:
            y = derivative(module, x, order, registry=registry).detach()
            if y.shape != x.shape:
                raise ActivationArgumentError(
                    f"{type(module).__name__} turns shape {tuple(x.shape)} into {tuple(y.shape)}; this needs an "
                    "elementwise activation."
                )
            return y

        return evaluate

    return of_order(0), of_order(1), of_order(2)


def keep_one_channel_(module: nn.Module, *, registry: Names | None = None) -> None:
    """Turn an activation with the same values for every channel into one that takes any shape, in place.

    Parameters and buffers are replaced by the value of one channel, unless the module takes any shape as it is: then
    they are something else, such as the coefficients of a polynomial.

    Args:
        module: An activation in float64, on the CPU.
        registry: Where the closed forms are looked up.

    Raises:
        ActivationArgumentError: If the channels have different values.

    Example:
        >>> module = nn.PReLU(3).double()
        >>> keep_one_channel_(module)
        >>> module.weight.shape
        torch.Size([1])
    """
    if isinstance(module, ChannelModule) and module.needs_channels:
        module.set_channels(1, dtype=torch.float64)
    if all(_takes(module, length, registry) for length in (5, 7)):
        return
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        values = tensor.detach().flatten()
        if not bool((values == values[:1]).all()):
            raise ActivationArgumentError(
                f"{type(module).__name__}: {name} differs between its {len(values)} channels, so this is not one "
                "function. Build an activation with the value of one channel."
            )
        if len(values) > 1:
            tensor.data = values[:1]


def _takes(module: nn.Module, length: int, registry: Names | None) -> bool:
    """Return whether an activation computes a vector of this length from one."""
    try:
        return derivative(module, torch.zeros(length, dtype=torch.float64), 0, registry=registry).shape == (length,)
    except (RuntimeError, ValueError, IndexError):
        return False  # what is wrong shows again where its values are needed


def checked_interval(interval: tuple[float, float]) -> tuple[float, float]:
    """Return an interval as two finite numbers in order.

    Args:
        interval: From where to where.

    Returns:
        The two numbers.

    Raises:
        ActivationArgumentError: If they are not.

    Example:
        >>> checked_interval((-12, 12))
        (-12.0, 12.0)
    """
    low, high = (float(end) for end in interval)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ActivationArgumentError(
            f"interval={tuple(interval)!r} is not accepted: give two finite numbers from left to right, such as "
            "(-12, 12)."
        )
    return low, high
