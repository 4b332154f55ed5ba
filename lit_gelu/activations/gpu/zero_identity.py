"""The 0-I map's draw in one pass over memory: what is dropped becomes -0.0, so that the output tells the mask."""

from typing import Any

import torch
from torch import Tensor

from lit_gelu.activations.gpu.autograd import Kernel, Plain, tried
from lit_gelu.activations.gpu.routes import Route, route


class ZeroIdentityKernel(Kernel):
    """The map with the normal gate; its random numbers are not those that torch would draw."""

    name = "zero_identity_map"

    def forward(self, x: Tensor, /, *_: Tensor) -> Tensor:
        """Draw once; the seed is drawn on the device, so that nothing waits and a captured graph draws anew."""
        from lit_gelu.activations.gpu import operators

        y: Tensor = operators.zero_identity(x, torch.randint(2**62, (), device=x.device))
        return y

    def backward(self, gradient: Tensor, y: Tensor, /, *_: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient where the output y was kept, else 0."""
        from lit_gelu.activations.gpu import operators

        return (operators.zero_identity_backward(gradient, y),)

    def route(self, x: Tensor) -> Route:
        """Return which code draws."""
        found = route(x)
        return Route("torch", "torch.compile's own code is as fast here") if found.code == "formula" else found


ZERO_IDENTITY = ZeroIdentityKernel()


def fused_draw(plain: Plain, x: Tensor) -> Tensor:
    """Draw by the kernel or by ``plain``, torch's own operations."""
    if ZERO_IDENTITY.route(x).code == "torch":
        return plain(x)
    try:
        y: Tensor = _MaskedMap.apply(x)
    except _NotDrawnError:
        return plain(x)
    return y


class _NotDrawnError(Exception):
    """The kernel failed."""


class _MaskedMap(torch.autograd.Function):
    """One draw, of which the output alone is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = tried(ZERO_IDENTITY, ZERO_IDENTITY.forward, x)
        if y is None:
            raise _NotDrawnError
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        if not torch.is_grad_enabled():  # else somebody differentiates the gradient
            found = tried(ZERO_IDENTITY, ZERO_IDENTITY.backward, gradient, y)
            if found is not None:
                return found[0]
        return torch.where((y == 0) & torch.signbit(y), 0.0, gradient)
