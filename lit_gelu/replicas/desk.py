"""One member's parameters, gradients and moments side by side, where it is trained for some steps and then put back."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_ALIGNED = 64  # bytes, a line of the cache: libraries may compute what begins elsewhere in another order
_IN_CACHE = 2**16  # numbers that are updated at once
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
        self._scratch = torch.empty(min(_IN_CACHE, sum(sizes)), dtype=first.dtype, device=first.device)
        self._pieces = list(zip(*(tensor.split(_IN_CACHE) for tensor in whole), strict=True))
        if not _ends_are_as_the_rest(first.dtype):
            self._pieces = list(zip(*map(_flattened, self._parts()), strict=True))
            self._scratch = self._scratch.new_empty(max(map(len, (piece[0] for piece in self._pieces))))

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
        for value, gradient, mean, square in self._pieces:
            _adam_step(value, gradient, mean, square, self._scratch[: len(value)], group, step)

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


def _flattened(parts: Mapping[str, Tensor]) -> list[Tensor]:
    return [part.flatten() for part in parts.values()]


def _adam_step(
    value: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, scratch: Tensor, group: Mapping[str, Any], step: int
) -> None:
    """Compute what torch computes of single tensors, in its order; the gradient may be overwritten."""
    (beta1, beta2), decay = group["betas"], group["weight_decay"]
    if group["maximize"]:
        gradient.neg_()
    if decay and group["decoupled_weight_decay"]:
        value.mul_(1 - group["lr"] * decay)
    elif decay:
        gradient.add_(value, alpha=decay)
    mean.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    torch.sqrt(square, out=scratch).div_((1 - beta2**step) ** 0.5).add_(group["eps"])
    value.addcdiv_(mean, scratch, value=-(group["lr"] / (1 - beta1**step)))


@functools.cache
def _ends_are_as_the_rest(dtype: torch.dtype) -> bool:
    """Tell whether this processor updates numbers one by one as many at once: at ends of tensors it does the first."""
    generator = torch.Generator().manual_seed(0)
    many = torch.rand(4, 601, dtype=dtype, generator=generator)
    singly, scratch = many.clone(), torch.empty(601, dtype=dtype)
    group = {"betas": (0.9, 0.999), "eps": 1e-8, "lr": 1e-3, "weight_decay": 0.1, "maximize": False}
    for step, decoupled in ((1, False), (2, False), (3, True)):
        group["decoupled_weight_decay"] = decoupled
        _adam_step(*many, scratch, group, step)
        for one in singly.split(1, dim=1):
            _adam_step(*one, scratch[:1], group, step)
    return torch.equal(many, singly)
