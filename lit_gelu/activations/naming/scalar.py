"""Any activation, named or built, as ``f``, ``f'`` and ``f''``; and as functions of one float64 number."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.activations.naming.names import Names, registry_or_default
from lit_gelu.activations.numerics.arguments import check_floating
from lit_gelu.activations.numerics.channels import ChannelModule
from lit_gelu.activations.numerics.sampling import Function
from lit_gelu.errors import ArgumentError


def derivative(activation: Any, x: Tensor, order: int = 1, *, registry: Names | None = None) -> Tensor:
    """Compute a derivative of an activation with respect to its input, elementwise.

    The registered closed form is used; without one, or where a module of your own class has parameters or buffers of
    which it is not known which argument they are the present value of, ``torch.func`` differentiates what the
    activation computes in evaluation mode.

    Args:
        activation: Any spec, or a module, whose parameters are then used as they are now.
        x: Pre-activations: any shape, any floating dtype.
        order: 0 for ``f(x)``, 1 for ``f'(x)``, 2 for ``f''(x)``.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        A tensor of the shape and dtype of ``x``. A jump takes its value from one side; a kink has no term of its own.

    Raises:
        ArgumentError: If ``x`` is not a floating tensor, ``order`` none of these, or not 0 and the activation not
            elementwise, or if it returns no tensor.

    Example:
        >>> x = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
        >>> derivative("gelu", x, order=1)
        tensor([-0.0833,  0.5000,  1.0833], dtype=torch.float64)
        >>> derivative(torch.nn.Softsign(), x, order=1)
        tensor([0.2500, 1.0000, 0.2500], dtype=torch.float64)
    """
    if isinstance(order, bool) or order not in (0, 1, 2):
        raise ArgumentError(f"order={order!r} is not accepted: 0 is f itself, 1 and 2 are its derivatives.")
    check_floating("derivative", x)
    registry = registry_or_default(registry)
    module = activation if isinstance(activation, nn.Module) else registry.create(activation).to(x)
    return derivatives_of(module, registry)(x, order)


def derivatives_of(module: nn.Module, registry: Names | None = None) -> Callable[[Tensor, int], Tensor]:
    """Return `derivative` of a module with its present parameters, which are looked up once for all calls."""
    registry = registry_or_default(registry)
    if (entry := registry.entry_of(module)) is None:
        return lambda x, order: _by_autograd(module, x, order)
    facts, arguments = entry.facts_for(registry.spec_of(module).arguments), entry.live_arguments(module)

    def evaluate(x: Tensor, order: int) -> Tensor:
        if order > 0 and not facts.elementwise:
            raise ArgumentError(
                f"{entry.name!r} has no derivative here: it is no function of one number, element by element. "
                "Differentiate it by torch.func, such as torch.func.vjp."
            )
        if arguments is not None and order == 0 and entry.function is not None:
            return _tensor(entry.function(x.clone(), **arguments))  # a function of the user's may write in place
        if arguments is not None and order > 0 and entry.derivative is not None:
            return entry.derivative(x, order, **arguments)
        return _by_autograd(module, x, order)

    return evaluate


def _by_autograd(module: nn.Module, x: Tensor, order: int) -> Tensor:
    """Differentiate the sum of the outputs, which for an elementwise function is its derivative at each element."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        # Not the call: somebody's hooks would see an input that is no forward pass.
        return _nth_derivative(module.forward, order)(x)
    finally:
        for part in training:
            part.training = True


def _nth_derivative(function: Callable[[Tensor], Tensor], order: int) -> Callable[[Tensor], Tensor]:
    if order == 0:
        return lambda x: _tensor(function(x.clone()))  # it may write in place, and the tensor is the caller's

    def total(x: Tensor) -> Tensor:
        y = _nth_derivative(function, order - 1)(x)
        if y.shape != x.shape:
            raise ArgumentError(
                f"The activation turns shape {tuple(x.shape)} into {tuple(y.shape)}; only elementwise activations "
                "have a derivative here."
            )
        return y.sum()

    return torch.func.grad(total)


def _tensor(y: object) -> Tensor:
    """Return what an activation computed; refuse what is no tensor."""
    if not isinstance(y, Tensor):
        raise ArgumentError(
            f"The activation returns {'None' if y is None else f'a {type(y).__name__}'}, and no tensor. Let its "
            "function, or its module's forward, return the tensor that it computes."
        )
    return y


@dataclass(frozen=True)
class ScalarActivation:
    """An elementwise activation as functions from float64 tensors of shape ``(N,)`` to the same."""

    spec: str  # canonical, as text
    functions: tuple[Function, Function, Function]  # f, f' and f''
    kinks: tuple[tuple[float, float], ...]  # where f' jumps and by how much, as far as it is stated

    @classmethod
    def of(cls, spec: Any, registry: Names | None) -> "ScalarActivation":
        """Build it of any spec, or of a module, whose parameters are then used as they are now."""
        registry = registry_or_default(registry)
        canonical = registry.resolve(spec)
        kinks: tuple[tuple[float, float], ...] = ()
        if not canonical.opaque:
            facts = registry.entry(canonical.name).facts_for(canonical.arguments)
            if not facts.elementwise:
                raise ArgumentError(f"{canonical} is not elementwise: it is no function of one number.")
            kinks = tuple(facts.kinks)
        module = registry.create(spec).to("cpu", torch.float64).eval()
        _keep_one_channel_(module, registry)
        derivatives = derivatives_of(module, registry)

        def evaluate(order: int, x: Tensor) -> Tensor:
            y = derivatives(x, order).detach()
            if y.shape != x.shape:
                raise ArgumentError(
                    f"{canonical} turns shape {tuple(x.shape)} into {tuple(y.shape)}; this needs an elementwise "
                    "activation."
                )
            return y

        return cls(str(canonical), (partial(evaluate, 0), partial(evaluate, 1), partial(evaluate, 2)), kinks)


def _keep_one_channel_(module: nn.Module, registry: Names) -> None:
    """Turn an activation in float64 with the same values for every channel into one that takes any shape, in place."""
    # Unless it takes any shape as it is: then its parameters are something else, such as a polynomial's coefficients.
    if isinstance(module, ChannelModule) and module.needs_channels:
        module.set_channels(1, dtype=torch.float64)
    if all(_takes(module, length, registry) for length in (5, 7)):
        return
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        values = tensor.detach().flatten()
        if not bool((values == values[:1]).all()):
            raise ArgumentError(
                f"{type(module).__name__}: {name} differs between its {len(values)} channels, so this is not one "
                "function. Build an activation with the value of one channel."
            )
        if len(values) > 1:
            tensor.data = values[:1]


def _takes(module: nn.Module, length: int, registry: Names) -> bool:
    """Return whether an activation computes a vector of this length from one."""
    try:
        return derivatives_of(module, registry)(torch.zeros(length, dtype=torch.float64), 0).shape == (length,)
    except (RuntimeError, ValueError, IndexError):
        return False  # what is wrong shows again where its values are needed


def checked_interval(interval: tuple[float, float]) -> tuple[float, float]:
    """Return an interval as two finite numbers from left to right."""
    low, high = (float(end) for end in interval)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ArgumentError(
            f"interval={tuple(interval)!r} is not accepted: give two finite numbers from left to right, such as "
            "(-12, 12)."
        )
    return low, high
