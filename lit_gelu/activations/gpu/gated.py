"""Gated functions: one half of a dimension through a function, times the other half."""

from dataclasses import dataclass

from torch import Tensor

from lit_gelu.activations.gpu.autograd import Kernel, TritonKernel
from lit_gelu.activations.gpu.formulas import FORMULAS
from lit_gelu.activations.gpu.routes import Route, route


@dataclass(frozen=True)
class GatedKernel(Kernel):
    """``f(gate) value``: f by its name in `device` with one parameter, the dimension, and which half is the gate."""

    name: str
    p0: float
    dim: int
    gate: int = 0

    def forward(self, x: Tensor, /, *_: Tensor) -> Tensor:
        """Return the function of x, half as long in the dimension."""
        from lit_gelu.activations.gpu import operators

        y: Tensor = operators.gated(x, self.name, self.p0, self.dim, self.gate)
        return y

    def backward(self, gradient: Tensor, x: Tensor, /, *_: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient by x."""
        from lit_gelu.activations.gpu import operators

        return (operators.gated_backward(gradient, x, self.name, self.p0, self.dim, self.gate),)

    def route(self, x: Tensor) -> Route:
        """Return which code computes the function of x."""
        found = route(x)
        if found.code == "torch":
            return found
        if not -x.dim() <= self.dim < x.dim() or x.shape[self.dim] % 2:
            return Route("torch", f"dimension {self.dim} of {tuple(x.shape)} has no two halves")
        if found.code == "formula":
            return found if self.name in FORMULAS else Route("torch", "torch.compile's own code is as fast here")
        from lit_gelu.activations.gpu.launch_gated import unsuited

        why = unsuited(x, self.dim)
        return Route("torch", why) if why else found

    def formula(self, x: Tensor, /, *_: Tensor) -> Tensor:
        """Return the function by its formula, which a compiler fuses with the product."""
        halves = x.chunk(2, self.dim)
        return TritonKernel(self.name, self.p0).formula(halves[self.gate]) * halves[1 - self.gate]
