"""Undoing what a training step writes to parameters, and to tensors that stand in lists and objects."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lit_gelu.errors import ArgumentError

COPIED_BYTES = 2**30
"""Up to which sum of their sizes tensors that are not trained are copied; a write to others is refused."""

_Kept = tuple[Tensor, Tensor, Tensor]
"""A tensor, the data that it stands for, and a copy of them."""


class WriteGuard:
    """Lets every call of a loss find frozen parameters and some other tensors as the first call found them."""

    # A training step may write to parameters: it averages the weights of a teacher (BYOL, MoCo, DINO), or clips some.
    # What is frozen is put back before each call and at the end. A write to a parameter that is **trained** makes the
    # loss another function than the one that is differentiated: it is put back at once and refused, unless it changes
    # no bit. Trained parameters are compared with where a call found them, since a caller may have moved them.

    def __init__(
        self, module: nn.Module, names: Mapping[str, Tensor], parameters: Sequence[Tensor], others: Sequence[Tensor]
    ) -> None:
        self._module, self._names = module, names  # for messages
        self._trained = [parameter for parameter in parameters if parameter.requires_grad]
        trained, size = set(map(id, self._trained)), 0
        self._kept: list[_Kept] = []
        self._watched: list[tuple[Tensor, int]] = []
        for tensor in (*parameters, *others):
            if id(tensor) not in trained and _can_be_written(tensor):
                size += tensor.nbytes
                if size <= COPIED_BYTES:
                    self._kept.append(_kept(tensor))
                else:
                    self._watched.append((tensor, tensor._version))

    @contextmanager
    def call(self) -> Iterator[None]:
        """Guard one call of the loss."""
        self.restore()
        before = [_kept(parameter) for parameter in self._trained if _can_be_written(parameter)]
        changed: list[Tensor] = []
        try:
            yield
        finally:
            changed = _put_back(before)
        self._refuse(changed, "writes to parameters that are trained", "They are put back.")
        written = [tensor for tensor, version in self._watched if tensor._version != version]
        self._refuse(written, "writes to frozen parameters that are too large to copy", "They could not be put back.")

    def restore(self) -> None:
        """Put back what was written."""
        _put_back(self._kept)

    def _refuse(self, tensors: Sequence[Tensor], what: str, state: str) -> None:
        """Raise an error that names the parameters, if there are any."""
        if not tensors:
            return
        names = {id(parameter): name for name, parameter in self._names.items()}
        shown = [names.get(id(tensor), f"one of shape {tuple(tensor.shape)}") for tensor in tensors[:3]]
        more = f" and {len(tensors) - 3} more" if len(tensors) > 3 else ""
        raise ArgumentError(
            f"The training step of {type(self._module).__name__} {what}: {', '.join(shown)}{more}. A loss that moves "
            f"its own parameters has no derivatives that belong to them. {state} Define curvature_loss(self, batch) on "
            "the module: it returns the scalar loss and writes to no parameter. Or write to them elsewhere, e.g. in "
            "on_train_batch_start."
        )


def _kept(tensor: Tensor) -> _Kept:
    return tensor, tensor.data, tensor.detach().clone()


def _put_back(kept: Sequence[_Kept]) -> list[Tensor]:
    """Let tensors have the data and values that they had; return those that had others."""
    changed = []
    for tensor, data, copy in kept:
        if tensor.data_ptr() != data.data_ptr():
            tensor.data = data
            changed.append(tensor)
        if not _equal(tensor.detach(), copy):
            with torch.no_grad():  # not by .data: a graph recorded before that needs what goes now must raise
                tensor.copy_(copy)
            changed.append(tensor)
        if tensor.grad_fn is not None:  # a result with a graph was added to it
            tensor.detach_()
    return list({id(tensor): tensor for tensor in changed}.values())


def _can_be_written(tensor: Tensor) -> bool:
    """Return whether a training step could write to a tensor: not to those of validation, made in inference mode."""
    return tensor.layout == torch.strided and tensor.device.type != "meta" and not tensor.is_inference()


def _equal(some: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal, of the same shape, and not a number at the same places."""
    if torch.equal(some, other):
        return True
    alike = some.shape == other.shape and some.is_floating_point()
    return alike and torch.allclose(some, other, rtol=0, atol=0, equal_nan=True)
