"""An activation's derivatives at its inputs, with all that its registry says of it looked up once."""

import math
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.numerics.joint import Derivatives
from lit_gelu.curvature.activation.derivatives import joint_derivatives
from lit_gelu.curvature.activation.kinks import Jumps, kinks_of
from lit_gelu.curvature.activation.slopes import Intervals, where_decreasing


class Evaluator:
    """Evaluates an activation where its input is finite.

    Looking up who an activation is takes as long as a sum over all of its inputs, so one is kept for each site; what
    has no parameters is taken to stay what it is.

    Args:
        activation: The activation; its parameters are used as they are at the call.
        registry: Where closed forms and kinks are looked up.

    Example:
        >>> from lit_gelu.activations import registry
        >>> at, others = Evaluator(nn.ReLU(), registry)(torch.tensor([[-1.0, 2.0]]), torch.ones(1, 2))
        >>> at.first.tolist(), others.first.tolist()
        ([[0.0, 1.0]], [0.0])
    """

    def __init__(self, activation: nn.Module, registry: ActivationRegistry) -> None:
        self.activation = activation
        self.registry = registry
        self._at_zero: dict[torch.dtype, Derivatives | None] = {}

    def __call__(self, x: Tensor, finite: Tensor) -> tuple[Derivatives, Derivatives]:
        """Return f, f', f'' and gate at all elements.

        Args:
            x: Pre-activations, ``[sites, ...]``, 0 where they are not finite; of an activation with parameters of its
                own there is one site.
            finite: 1 where they are, 0 elsewhere.

        Returns:
            What they are at each element; and what they are where ``finite`` is 0, one number each, on the CPU.
        """
        inner = x[0] if x.shape[0] == 1 else x  # a module with channels takes its input as it was
        parts = [None if part is None else part.reshape(x.shape) for part in self._joint(inner)]
        if x.dtype not in self._at_zero:
            self._at_zero[x.dtype] = self._evaluated_at_zero(x.dtype)
        at_zero = self._at_zero[x.dtype]
        if at_zero is not None:
            return _derivatives(parts), at_zero
        mask = finite > 0
        return _derivatives([None if part is None else torch.where(mask, part, 0.0) for part in parts]), _NOTHING

    @cached_property
    def kinks(self) -> Jumps | None:
        """The kinks, as `kinks_of`."""
        return kinks_of(self.activation, self.registry)

    @cached_property
    def decreasing(self) -> Intervals | None:
        """Where f' < 0, as `where_decreasing`."""
        return where_decreasing(self.activation, self.registry)

    @cached_property
    def _joint(self) -> Callable[[Tensor], Derivatives]:
        return joint_derivatives(self.activation, self.registry)

    def _evaluated_at_zero(self, dtype: torch.dtype) -> Derivatives | None:
        """Evaluate at x = 0: taking away what zeros contribute is cheaper than to mask all elements.

        Returns:
            What they are there; ``None`` where what is not finite has to be masked instead: in activations with state
            of their own, in those that nobody registered, and where f(0) is not finite.
        """
        own_state = any(True for _ in self.activation.parameters()) or any(True for _ in self.activation.buffers())
        if own_state or self.registry.spec_of(self.activation).opaque:
            return None
        at = self._joint(torch.zeros(1, dtype=dtype))
        return at if all(map(math.isfinite, torch.cat(at[:3]).tolist())) else None


def _derivatives(parts: list[Tensor | None]) -> Derivatives:
    return Derivatives(*parts)  # type: ignore[arg-type]  # only the gate may be None


_NOTHING = Derivatives(*[torch.zeros(1)] * 4)
