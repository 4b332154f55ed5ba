"""``f``, ``f'`` and ``f''`` of any activation, named or built."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.naming.names import Names, default_names


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
        ActivationArgumentError: If ``order`` is none of these, or not 0 and the activation is not elementwise.

    Example:
        >>> import torch
        >>> x = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
        >>> derivative("gelu", x, order=1)
        tensor([-0.0833,  0.5000,  1.0833], dtype=torch.float64)
        >>> derivative(torch.nn.Softsign(), x, order=1)
        tensor([0.2500, 1.0000, 0.2500], dtype=torch.float64)
    """
    if isinstance(order, bool) or order not in (0, 1, 2):
        raise ActivationArgumentError(f"order={order!r} is not accepted: 0 is f itself, 1 and 2 are its derivatives.")
    registry = registry or default_names()
    module = activation if isinstance(activation, nn.Module) else registry.create(activation).to(x)
    entry = registry.entry_of(module)
    if entry is not None and order > 0 and not entry.facts_for(registry.spec_of(module).arguments).elementwise:
        raise ActivationArgumentError(
            f"{entry.name!r} has no derivative here: it is no function of one number, element by element. "
            "Differentiate it by torch.func, such as torch.func.vjp."
        )
    arguments = None if entry is None else entry.live_arguments(module)
    if entry is not None and arguments is not None:
        if order == 0 and entry.function is not None:
            return entry.function(x, **arguments)
        if order > 0 and entry.derivative is not None:
            return entry.derivative(x, order, **arguments)
    return _by_autograd(module, x, order)


def _by_autograd(module: nn.Module, x: Tensor, order: int) -> Tensor:
    """Differentiate the sum of the outputs, which for an elementwise function is its derivative at each element."""
    was_training = module.training
    module.eval()
    try:
        # Not the call: somebody's hooks would see an input that is no forward pass.
        return _nth_derivative(module.forward, order)(x)
    finally:
        module.train(was_training)


def _nth_derivative(function: Callable[[Tensor], Tensor], order: int) -> Callable[[Tensor], Tensor]:
    if order == 0:
        return function

    def total(x: Tensor) -> Tensor:
        y = _nth_derivative(function, order - 1)(x)
        if y.shape != x.shape:
            raise ActivationArgumentError(
                f"The activation turns shape {tuple(x.shape)} into {tuple(y.shape)}; only elementwise activations "
                "have a derivative here."
            )
        return y.sum()

    return torch.func.grad(total)
