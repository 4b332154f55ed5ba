"""An activation and dropout behind it, as one module."""

from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it
from torch.nn.modules.module import _has_any_global_hook

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.naming.names import Names, default_names
from lit_gelu.activations.numerics.bits import packed
from lit_gelu.activations.numerics.output_memory import OutputModule, from_output
from lit_gelu.activations.numerics.valley import Valley, ValleyOutput, scaled


class ActivationDropout(nn.Module):
    """``dropout(activation(x))``; of GELU and its kin with ``memory="output"`` nothing but the output is kept.

    Two modules keep the input and a mask. Here the mask is in the output: a 0 with the bit of the left branch has no
    derivative, whether it was dropped or the tail underflowed. That holds for ``gelu`` (exact and tanh) and the others
    with ``memory="output"`` that fall and rise; the rest is computed, and keeps what it keeps, as two modules.

    Bytes kept for the backward pass, for each element in 16 bits: the 2 of the output, which the next layer often keeps
    anyway, and 1/8; without ``memory="output"`` 3 or 4 that nobody else keeps.

    Args:
        activation: Any spec of an activation.
        p: The probability with which an element is dropped, from 0 to 1; the others are divided by ``1 - p``.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Raises:
        ActivationArgumentError: If ``p`` is no probability.

    Example:
        >>> module = ActivationDropout("gelu(memory='output')", p=0.5)
        >>> _ = torch.manual_seed(0)
        >>> module(torch.full((6,), 2.0, requires_grad=True)).detach()
        tensor([0.0000, 0.0000, 3.9090, 0.0000, 0.0000, 0.0000])
        >>> module.eval()(torch.full((2,), 2.0))
        tensor([1.9545, 1.9545])
    """

    def __init__(self, activation: Any = "gelu", p: float = 0.5, *, registry: Names | None = None) -> None:
        super().__init__()
        given: object = p
        if isinstance(given, bool) or not isinstance(given, Real) or not 0.0 <= p <= 1.0:
            raise ActivationArgumentError(f"ActivationDropout: p={p!r} is not accepted. Give a number from 0 to 1.")
        self.activation = (registry or default_names()).create(activation)
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Apply both to a floating tensor of any shape, elementwise."""
        valley = self._valley() if self.training and 0.0 < self.p < 1.0 else None
        return self._composed(x) if valley is None else from_output(DroppedOutput(valley, p=self.p), self._composed, x)

    def _composed(self, x: Tensor) -> Tensor:
        """Apply one after the other."""
        return F.dropout(self.activation(x), self.p, self.training)

    def _valley(self) -> Valley | None:
        """Return the activation's function if its output is to tell all, and nobody listens to the activation."""
        activation = self.activation
        if not isinstance(activation, OutputModule) or _has_listeners(activation) or "forward" in vars(activation):
            return None
        rule = activation.rule()
        return rule.valley if isinstance(rule, ValleyOutput) else None

    def extra_repr(self) -> str:
        """Return ``p=...`` for ``repr``."""
        return f"p={self.p}"


def _has_listeners(module: nn.Module) -> bool:
    """Say whether hooks wait for a call of the module, its own or those of all modules."""
    own = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(own) or bool(_has_any_global_hook())  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class DroppedOutput(ValleyOutput):
    """The same with dropout behind it."""

    p: float = 0.5

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Draw a mask; return the output and the branches, left where it was dropped."""
        y = self.valley.output(x)
        kept = torch.empty_like(y).bernoulli_(1.0 - self.p)
        right = (x >= self.valley.lowest).logical_and_(kept)
        return y.mul_(kept.mul_(self._factor(y))), packed(right)

    def backward(self, gradient: Tensor, y: Tensor, *kept: Tensor) -> Tensor:
        """Return the gradient by the input."""
        return ValleyOutput(scaled(self.valley, self._factor(y))).backward(gradient, y, *kept)

    def _factor(self, y: Tensor) -> float:
        """Return ``1 / (1 - p)`` as torch's dropout divides in the dtype of the output, and multiplies by it."""
        return float(torch.ones((), dtype=y.dtype, device="cpu").div_(1.0 - self.p))
