"""One member's parameters, gradients and moments side by side, where it is trained for some steps and then put back."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_ALIGNED = 64  # bytes, a line of the cache: libraries may compute what begins elsewhere in another order
_IN_CACHE = 2**17  # numbers that are updated at once
_MOMENTS = ("exp_avg", "exp_avg_sq")


class Desk:
    """Four flat tensors, of which every parameter has a part; one desk serves members in turn, and stays in the cache.

    Args:
        like: Parameters by name, of one dtype on one device.
    """

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        first = next(iter(like.values()))
        unit = _ALIGNED // first.element_size()
        sizes = [-(-tensor.numel() // unit) * unit for tensor in like.values()]

        def flat() -> tuple[Tensor, dict[str, Tensor]]:
            whole = torch.zeros(sum(sizes) + unit, dtype=first.dtype, device=first.device)
            whole = whole[-whole.data_ptr() % _ALIGNED // first.element_size() :][: sum(sizes)]
            parts = zip(like.items(), whole.split(sizes), strict=True)
            return whole, {name: part[: tensor.numel()].view(tensor.shape) for (name, tensor), part in parts}

        (value, self.values), (gradient, self.gradients), (mean, self.means), (square, self.squares) = (
            flat() for _ in range(4)
        )
        whole = (value, gradient, mean, square)
        scratch = torch.empty_like(value)
        pieces = list(zip(*(tensor.split(_IN_CACHE) for tensor in whole), strict=True))
        if not _ends_are_as_the_rest(first.dtype):
            pieces = list(zip(*([part.flatten() for part in parts.values()] for parts in self._parts()), strict=True))
        self._pieces = [_Piece(*piece, scratch[: len(piece[0])]) for piece in pieces]

    def _parts(self) -> tuple[dict[str, Tensor], ...]:
        return self.values, self.gradients, self.means, self.squares

    def take(self, parameters: Sequence[Tensor], states: Sequence[Mapping[str, Any]]) -> None:
        """Copy a member's parameters, in the order of the names, and its optimizer's moments."""
        torch._foreach_copy_(list(self.values.values()), list(parameters))
        for own, key in zip((self.means, self.squares), _MOMENTS, strict=True):
            torch._foreach_copy_(list(own.values()), [state[key] for state in states])

    def put_back(self, parameters: Sequence[Tensor], states: Sequence[Mapping[str, Any]]) -> None:
        """Copy what `take` took to where it was."""
        torch._foreach_copy_(list(parameters), list(self.values.values()))
        for own, key in zip((self.means, self.squares), _MOMENTS, strict=True):
            torch._foreach_copy_([state[key] for state in states], list(own.values()))

    def adam(self, group: Mapping[str, Any], step: int) -> None:
        """Make the step of a number, counted from 1, of `torch.optim.Adam` with a parameter group's settings."""
        if group["fused"]:
            self._fused(group, step)
            return
        settings = _Settings.of(group, step)
        for piece in self._pieces:
            piece.adam(settings)

    def _fused(self, group: Mapping[str, Any], step: int) -> None:
        kernel = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
        parts = [list(part.values()) for part in self._parts()]
        kernel(
            *parts,
            [],
            [torch.tensor(float(step))] * len(self.values),
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=group["maximize"],
        )


class _Settings(NamedTuple):
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
    def of(group: Mapping[str, Any], step: int) -> "_Settings":
        """Compute it as torch does, for the step of a number."""
        (beta1, beta2), lr, decay = group["betas"], group["lr"], group["weight_decay"]
        decoupled = group["decoupled_weight_decay"]
        return _Settings(
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


class _Piece:
    """Some numbers that are updated together: in numpy where its results cannot differ from torch's."""

    # numpy's calls with numbers of Python take a third of the time of torch's, and *, / and + are the same everywhere.

    def __init__(self, value: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, scratch: Tensor) -> None:
        self.value, self.gradient, self.mean, self.square, self.scratch = value, gradient, mean, square, scratch
        self.square_, self.scratch_ = square.numpy(), scratch.numpy()
        self.number = self.square_.dtype.type

    def adam(self, settings: _Settings) -> None:
        """Compute what torch computes of single tensors, in its order; the gradient may be overwritten."""
        gradient, square, scratch, number = self.gradient, self.square_, self.scratch_, self.number
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
def _ends_are_as_the_rest(dtype: torch.dtype) -> bool:
    """Tell whether this processor updates numbers one by one as many at once: at ends of tensors it does the first."""
    generator = torch.Generator().manual_seed(0)
    many = torch.rand(5, 601, dtype=dtype, generator=generator)
    singly = many.clone()
    settings = _Settings(False, 0.9, 0.1, 0.1, 0.999, 0.001, 0.3, 1e-8, -1e-3)
    for _ in range(3):
        _Piece(*many).adam(settings)
        for one in singly.split(1, dim=1):
            _Piece(*(row.flatten() for row in one)).adam(settings)
    return torch.equal(many, singly)
