"""`SampleMean`: a mean over samples whose sums keep their digits whatever the net's dtype is."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torchmetrics import MeanMetric


class SampleMean(MeanMetric):
    """The mean of all samples, summed in float32 or more.

    ``Trainer(precision="bf16-true")`` converts all of a module, and a sum in bfloat16 stops growing after some hundred
    samples. A NaN is let through: torchmetrics' own strategies drop it, and a diverged net would look healthy.
    """

    def __init__(self) -> None:
        super().__init__(nan_strategy="disable")

    def _apply(self, fn: Callable[..., Any], exclude_state: Sequence[str] = "") -> Self:
        before: dict[str, torch.Tensor] = {name: getattr(self, name) for name in self._defaults}
        super()._apply(fn, exclude_state)
        if not self._dtype_convert and self.dtype.itemsize < torch.float32.itemsize:
            self.set_dtype(torch.float32)
            for name, value in before.items():
                setattr(self, name, value.to(getattr(self, name)))  # its digits, on the device that is meant
        return self

    def update(self, value: float | torch.Tensor, weight: float | torch.Tensor | None = None) -> None:
        """Add samples, ``[samples]``, without rounding their sum to 16 bits."""
        if isinstance(value, torch.Tensor) and value.itemsize < torch.float32.itemsize:
            value = value.float()
        super().update(value, weight)
