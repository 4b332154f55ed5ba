"""Adam on a CPU in few calls, to the bit as torch computes it of single tensors."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class AdamSettings(NamedTuple):
    """What one step of Adam computes with."""

    maximize: bool
    shrinking: float  # of the value, by decoupled decay
    decay: float
    of_mean: float
    beta2: float
    of_square: float
    root: float
    eps: float
    size: float

    @staticmethod
    def of(group: Mapping[str, Any], step: int) -> "AdamSettings":
        """Compute it as torch does, for the step of a number."""
        (beta1, beta2), lr, decay = group["betas"], group["lr"], group["weight_decay"]
        decoupled = group["decoupled_weight_decay"]
        return AdamSettings(
            group["maximize"],
            1 - lr * decay if decoupled else 1,
            0 if decoupled else decay,
            1 - beta1,
            beta2,
            1 - beta2,
            (1 - beta2**step) ** 0.5,
            group["eps"],
            -(lr / (1 - beta1**step)),
        )


class AdamPiece:
    """Some numbers that are updated together: in numpy where its results cannot differ from torch's."""

    # numpy's calls with numbers of Python take a third of the time of torch's, and *, / and + are the same everywhere.

    def __init__(self, value: Tensor, mean: Tensor, square: Tensor, scratch: Tensor) -> None:
        self.value, self.mean, self.square, self.scratch = value, mean, square, scratch
        self.square_, self.scratch_ = square.numpy(), scratch.numpy()
        self.number = self.square_.dtype.type

    def adam(self, gradient: Tensor, settings: AdamSettings) -> None:
        """Compute what torch computes of single tensors, in its order; the gradient may be overwritten."""
        square, scratch, number = self.square_, self.scratch_, self.number
        if settings.maximize:
            gradient.neg_()
        if settings.shrinking != 1:
            self.value.mul_(settings.shrinking)
        if settings.decay:
            gradient.add_(self.value, alpha=settings.decay)
        self.mean.lerp_(gradient, settings.of_mean)
        np.multiply(square, number(settings.beta2), out=square)
        self.square.addcmul_(gradient, gradient, value=settings.of_square)
        torch.sqrt(self.square, out=self.scratch)  # not to the last bit in torch
        np.divide(scratch, number(settings.root), out=scratch)
        np.add(scratch, number(settings.eps), out=scratch)
        self.value.addcdiv_(self.mean, self.scratch, value=settings.size)


@functools.cache
def ends_are_as_the_rest(dtype: torch.dtype) -> bool:
    """Tell whether this processor updates numbers one by one as many at once: at ends of tensors it does the first."""
    generator = torch.Generator().manual_seed(0)
    many = torch.rand(5, 601, dtype=dtype, generator=generator)
    singly = many.clone()
    settings = AdamSettings(False, 0.9, 0.1, 0.1, 0.999, 0.001, 0.3, 1e-8, -1e-3)
    for _ in range(3):
        AdamPiece(*many[:4]).adam(many[4], settings)
        for one in torch.split(singly, 1, dim=1):
            AdamPiece(*(row.flatten() for row in one[:4])).adam(one[4].flatten(), settings)
    return torch.equal(many, singly)
