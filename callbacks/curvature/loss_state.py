"""What a measurement of the loss's curvature starts from, and hands on."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

Reduce = Callable[[Tensor], Tensor]
"""Sums a flat tensor over ranks."""

Figures = dict[tuple[str, ...], float]
"""By the parts of their names."""


@dataclass
class WarmStart:
    """What one event hands to the next.

    Attributes:
        method: How products were computed; "" before the first.
        vectors: The last eigenvectors, by quantity, shape ``[parameters]``.
        mixtures: In which shares the next eigenvectors were made of these and of the gradient, by quantity; see
            `lit_gelu.curvature.loss.start_vectors.learned_mixture`.
        learning_rate: The last critical learning rate.
        largest: The largest eigenvalue in magnitude that was found at the last event.
    """

    method: str = ""
    vectors: dict[str, Tensor] = field(default_factory=dict)
    learning_rate: float | None = None
    largest: float | None = None
    mixtures: dict[str, Tensor] = field(default_factory=dict)

    def state_dict(self, largest: int) -> dict[str, Any]:
        """Return plain data and tensors on the host; the vectors only if they have at most ``largest`` elements."""
        kept = {name: vector.cpu() for name, vector in self.vectors.items() if vector.numel() <= largest}
        return {
            "method": self.method,
            "vectors": kept,
            "learning_rate": self.learning_rate,
            "largest": self.largest,
            "mixtures": {name: mixture.cpu() for name, mixture in self.mixtures.items() if name in kept},
        }


@dataclass(frozen=True)
class Step:
    """The optimizer step that was taken.

    Attributes:
        before: The parameters before it, as `ParameterLayout.values` gave them.
        learning_rate: As `first_learning_rate` found it; ``None`` if there is none.
    """

    before: Tensor
    learning_rate: float | None


def first_learning_rate(optimizers: Iterable[Optimizer]) -> float | None:
    """Return the first positive learning rate of some optimizers' parameter groups.

    Args:
        optimizers: Any; groups without a rate, or whose rate is ``None`` or 0, are passed over.

    Returns:
        The rate; ``None`` if there is none, as of transformers' ``Adafactor``, which finds its own steps.

    Example:
        >>> import torch
        >>> parameters = [{"params": [torch.zeros(1)], "lr": rate} for rate in (0.0, 0.1)]
        >>> first_learning_rate([torch.optim.SGD(parameters)])
        0.1
    """
    rates = [group.get("lr") for optimizer in optimizers for group in optimizer.param_groups]
    return next((float(rate) for rate in rates if rate is not None and rate > 0), None)
