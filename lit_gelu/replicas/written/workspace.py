"""One member's parameters, gradients and moments side by side, where it is trained for some steps and then put back."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_gelu.replicas.optimizers.adam_arithmetic import AdamPiece, AdamSettings, ends_are_as_the_rest

ALIGNED = 64  # bytes, a line of the cache: libraries may compute what begins elsewhere in another order
_IN_CACHE = 2**17  # numbers that are updated at once
_MOMENTS = ("exp_avg", "exp_avg_sq")


class Workspace:
    """Four flat tensors, of which every parameter has a part; it serves members in turn, and stays in the cache.

    Args:
        like: Parameters by name, of one dtype on one device.
    """

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        first = next(iter(like.values()))
        unit = ALIGNED // first.element_size()
        sizes = [-(-tensor.numel() // unit) * unit for tensor in like.values()]

        def flat() -> tuple[Tensor, dict[str, Tensor]]:
            whole = torch.zeros(sum(sizes) + unit, dtype=first.dtype, device=first.device)
            whole = whole[-whole.data_ptr() % ALIGNED // first.element_size() :][: sum(sizes)]
            parts = zip(like.items(), torch.split(whole, sizes), strict=True)
            return whole, {name: part[: tensor.numel()].view(tensor.shape) for (name, tensor), part in parts}

        (value, self.values), (gradient, self.gradients), (mean, self.means), (square, self.squares) = (
            flat() for _ in range(4)
        )
        whole = (value, gradient, mean, square)
        scratch = torch.empty_like(value)
        pieces: list[Any] = list(zip(*(torch.split(tensor, _IN_CACHE) for tensor in whole), strict=True))
        if not ends_are_as_the_rest(first.dtype):
            pieces = list(zip(*([part.flatten() for part in parts.values()] for parts in self._parts()), strict=True))
        self._pieces = [
            (AdamPiece(values, means, squares, scratch[: len(values)]), gradients)
            for values, gradients, means, squares in pieces
        ]

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
        settings = AdamSettings.of(group, step)
        for piece, gradient in self._pieces:
            piece.adam(gradient, settings)

    def _fused(self, group: Mapping[str, Any], step: int) -> None:
        kernel: Any = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
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
