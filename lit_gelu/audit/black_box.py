"""A function of which nothing is known but its values."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from lit_gelu.audit.number_format import FloatFormat, NumberFormat
from lit_gelu.errors import AuditError, message_of

_SAMPLE = 64  # inputs that show whether a function is elementwise


class BlackBox:
    """A function from tensor to tensor, or array to array, that is elementwise and repeats itself.

    Args:
        function: What is called, with a tensor of one dimension, or a NumPy array if it takes no tensors.
        format: Of the inputs.

    Raises:
        AuditError: If the function raises, changes shape, is random, or is not elementwise.
    """

    def __init__(self, function: Callable[[Any], Any], format: NumberFormat) -> None:  # noqa: A002 - as NumPy calls it
        self.function = function
        self.format = format
        self._takes_arrays = False
        inputs = format.core_inputs()
        sample = inputs[torch.linspace(0, len(inputs) - 1, _SAMPLE).long()]
        try:
            self(sample)
        except AuditError as first:
            if isinstance(function, torch.nn.Module):
                raise
            self._takes_arrays = True
            try:
                self(sample)
            except AuditError as second:
                raise second from first
        self._require_elementwise(sample)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the function's values at real numbers of its format; both are float64."""
        x = self.format.encoded(inputs)
        argument = as_array(x) if self._takes_arrays else x.clone()  # it may overwrite its input
        try:
            with torch.no_grad(), np.errstate(all="ignore"):
                output = self.function(argument)
        except Exception as error:
            raise AuditError(
                f"The function cannot be called with {'an array' if self._takes_arrays else 'a tensor'} of "
                f"{self.format.name} and shape {tuple(x.shape)}: {message_of(error)}. Give one from tensor to tensor, "
                "or from NumPy array to NumPy array, and the dtype that it takes."
            ) from error
        y = output.detach().cpu() if isinstance(output, Tensor) else as_tensor(output)
        integers = not isinstance(self.format, FloatFormat)
        if y is None or y.shape != x.shape or y.is_floating_point() == integers or y.is_complex():
            what = type(output).__name__ if y is None else f"{y.dtype} of shape {tuple(y.shape)}"
            raise AuditError(
                f"The function makes {what} of {self.format.name} of shape {tuple(x.shape)}. Give an elementwise one: "
                f"its output is as large as its input, and of {'integers' if integers else 'real numbers'}."
            )
        return self.format.decoded(y)

    def _require_elementwise(self, x: Tensor) -> None:
        """Check that values do not depend on the call, on the other elements or on their order."""
        y = self(x)
        if not torch.equal(self(x).nan_to_num(nan=-1.25), y.nan_to_num(nan=-1.25)):
            raise AuditError(
                "The function gives two answers to one input: it is random, or remembers calls. Put dropout and noise "
                "into evaluation mode first."
            )
        halves = torch.cat([self(x[: _SAMPLE // 2]), self(x[_SAMPLE // 2 :])])
        # A kernel may compute the last elements of an array by other instructions: the last digits may differ.
        allowed = 4 * self.format.unit(x, y)
        for other in (halves, self(x.flip(0)).flip(0)):
            if bool(((other - y).nan_to_num().abs() > allowed).any()):
                raise AuditError(
                    "The function is not elementwise: a value changes with the other elements of the input, as those "
                    "of a softmax or a normalisation do. Give the activation alone."
                )


def as_array(x: Tensor) -> np.ndarray:
    """Return a tensor as an array of its own memory; bfloat16 as ``ml_dtypes`` has it."""
    if x.dtype is torch.bfloat16:
        return x.view(torch.int16).numpy().copy().view(ml_dtypes.bfloat16)
    return x.numpy().copy()


def as_tensor(output: Any) -> Tensor | None:
    """Return what a function gave, an array of any library, as a tensor; ``None`` if it is no array of numbers."""
    try:
        array = np.ascontiguousarray(output)
        if array.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
        return torch.from_numpy(array.copy())
    except (TypeError, ValueError):
        return None
