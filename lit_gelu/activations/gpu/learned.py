"""Functions whose parameters are tensors: one number each, or one for each channel; gradients by all in one pass."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lit_gelu.activations.gpu import formulas
from lit_gelu.activations.gpu.autograd import Kernel, Plain, TritonKernel, fused
from lit_gelu.activations.gpu.routes import Route, route

Parameter = float | Tensor


def fused_with(name: str, plain: Plain, x: Tensor, p0: Parameter, p1: Parameter, channel_dim: int) -> Tensor:
    """Compute the function of this name by the code of its route; ``plain`` takes x and both parameters."""
    kernel = kernel_with(name, p0, p1, channel_dim)
    if isinstance(kernel, TritonKernel):
        return fused(kernel, lambda x: plain(x, p0, p1), x)
    if kernel.route(x).code == "torch":
        return plain(x, p0, p1)
    return fused(kernel, plain, x, _as_tensor(p0, x), _as_tensor(p1, x))


def kernel_with(name: str, p0: Parameter, p1: Parameter, channel_dim: int) -> Kernel:
    """Return the kernel of the function of this name: with numbers in it, or one that reads tensors."""
    if not isinstance(p0, Tensor) and not isinstance(p1, Tensor):
        return TritonKernel(name, p0, p1)
    channels = max(p.numel() if isinstance(p, Tensor) else 1 for p in (p0, p1))
    return LearnedKernel(name, channel_dim, channels)


def _as_tensor(parameter: Parameter, x: Tensor) -> Tensor:
    """Return a parameter where a kernel reads it; a number is written there by the device."""
    if isinstance(parameter, Tensor):
        return parameter
    return torch.full((), parameter, dtype=torch.float32, device=x.device)


@dataclass(frozen=True)
class LearnedKernel(Kernel):
    """A function of `device` by its name, and where its channels are."""

    name: str
    channel_dim: int
    channels: int

    def forward(self, x: Tensor, /, *parameters: Tensor) -> Tensor:
        """Return the function of x and both parameters."""
        from lit_gelu.activations.gpu import operators

        y: Tensor = operators.learned(x, *parameters, self.name, self.channel_dim)
        return y

    def backward(self, gradient: Tensor, x: Tensor, /, *parameters: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients by x and both parameters."""
        from lit_gelu.activations.gpu import operators

        by_x, *sums = operators.learned_backward(gradient, x, *parameters, self.name, self.channel_dim)
        return by_x, *(by.to(p.dtype) for by, p in zip(sums, parameters, strict=True))

    def route(self, x: Tensor) -> Route:
        """Return which code computes the function of x."""
        found = route(x)
        if found.code == "torch" or self.channels == 1:
            return found
        if not -x.dim() <= self.channel_dim < x.dim() or x.shape[self.channel_dim] != self.channels:
            return Route("torch", f"{tuple(x.shape)} has no {self.channels} channels in dimension {self.channel_dim}")
        if found.code == "kernel":
            from lit_gelu.activations.gpu.launch_learned import unsuited

            if why := unsuited(x, self.channel_dim, self.channels):
                return Route("torch", why)
        return found

    def formula(self, x: Tensor, /, *parameters: Tensor) -> Tensor:
        """Return the function by its formula, which a compiler fuses with what is beside it."""
        shape = [-1 if i == self.channel_dim % x.dim() else 1 for i in range(x.dim())]
        along = (p.view(shape) if p.numel() > 1 else p for p in parameters)
        y: Tensor = _LearnedByFormula.apply(x, *along, self.name)
        return y


class _LearnedByFormula(torch.autograd.Function):
    """The same in operations that a compiler fuses; without forward mode, which it refuses."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p0: Tensor, p1: Tensor, name: str) -> Tensor:
        ctx.save_for_backward(x, p0, p1)
        ctx.name = name
        return formulas.FORMULAS[name].value(x.float(), p0, p1).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, *parameters = ctx.saved_tensors
        wide = gradient.float()
        by_x, *others = formulas.SLOPES[ctx.name](x.float(), *parameters)
        by_p0, by_p1 = ((wide * by).sum_to_size(p.shape).to(p.dtype) for by, p in zip(others, parameters, strict=True))
        return (wide * by_x).to(x.dtype), by_p0, by_p1, None
