"""A batch that is the same at every call, whatever a training step does to it."""

from typing import Any

import torch

from lit_gelu.curvature.loss.probe_batch import clone_batch, copy_containers
from lit_gelu.curvature.loss.probe_contents import Contents


class ProbeInput:
    """Hands a batch out as often as one likes, always with the same values, and never the batch itself.

    Training steps change batches in place (``x /= 255``). What is handed out is a copy; a new one is made only after
    the last was changed, which the version counters of its tensors tell.

    Args:
        batch: Tensors in any nesting of tuples, lists, mappings and dataclasses.

    Example:
        >>> x = ProbeInput(torch.ones(2))
        >>> x.fresh().div_(4)
        tensor([0.2500, 0.2500])
        >>> x.fresh()
        tensor([1., 1.])
    """

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._copy: Any = None
        self._contents: Contents | None = None
        self._marks: list[tuple[int, bool]] = []

    def fresh(self) -> Any:
        """Return a batch with the values given.

        Returns:
            A batch of the same kind, of tensors and containers that the one given does not share.
        """
        if self._contents is not None:
            self._contents.restore()
        if self._contents is None or self._marks != _marks(self._contents):
            with torch.inference_mode(False), torch.enable_grad():  # a copy of an inference tensor counts versions
                self._copy = clone_batch(self._batch)
            self._contents = Contents()
            self._contents.keep(self._copy)
            self._marks = _marks(self._contents)
        return copy_containers(self._copy)

    def release(self) -> None:
        """Forget the copy."""
        self._copy = self._contents = None


def _marks(contents: Contents) -> list[tuple[int, bool]]:
    """Return of each tensor what changes when it is written to, or put under differentiation."""
    return [(tensor._version, tensor.requires_grad) for tensor in contents.tensors]
