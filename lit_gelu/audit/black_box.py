"""A function of which nothing is known but its values: how it is called, and the numbers of a dtype to call it with."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_gelu.errors import ArgumentError, AuditError, message_of, shown

DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

_CORE = 8.0  # as far as activations differ by more than rounding
_UNIFORM = 4001  # inputs of the core
_EXPONENTS = 12  # inputs of each sign and power of two


def dtype_of(dtype: str | torch.dtype) -> torch.dtype:
    """Return one of the dtypes by its name or as it is."""
    accepted = DTYPES.get(str(dtype).removeprefix("torch."))
    if accepted is None:
        raise ArgumentError(f"dtype={shown(dtype)} is not accepted. Give one of {', '.join(DTYPES)}.")
    return accepted


def core_inputs(dtype: torch.dtype) -> Tensor:
    """Return numbers of a dtype from -8 to 8, as equally spaced as they may be: float64, rising."""
    return torch.linspace(-_CORE, _CORE, _UNIFORM, dtype=torch.float64).to(dtype).double().unique()


def all_inputs(dtype: torch.dtype) -> Tensor:
    """Return all finite numbers of a 16-bit dtype, or some of every power of two of a wider one: float64, rising."""
    info = torch.finfo(dtype)
    if info.bits == 16:
        bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
        values = bits.view(dtype).double()
        return values[values.isfinite()].unique()
    lowest = round(math.log2(info.smallest_normal * info.eps))  # of the subnormal numbers
    powers = torch.arange(lowest, round(math.log2(info.max)), dtype=torch.float64).exp2()
    mantissas = 1 + torch.arange(_EXPONENTS, dtype=torch.float64) / _EXPONENTS
    sizes = torch.outer(powers, mantissas).flatten().to(dtype).double()
    return torch.cat([-sizes, torch.zeros(1, dtype=torch.float64), sizes, core_inputs(dtype)]).unique()


def spacing(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the distance of neighbouring numbers of a dtype where values lie: a unit in the last place."""
    info = torch.finfo(dtype)
    sizes = values.abs().clamp(info.smallest_normal, info.max)
    return torch.frexp(sizes).exponent.sub(1).double().exp2() * info.eps


class BlackBox:
    """A function from tensor to tensor, or array to array, that is elementwise and repeats itself.

    Args:
        function: What is called, with a tensor of one dimension in ``dtype``, or a NumPy array if it takes no tensors.
        dtype: Of the inputs.

    Raises:
        AuditError: If the function raises, changes shape or dtype, is random, or is not elementwise.
    """

    def __init__(self, function: Callable[[Any], Any], dtype: torch.dtype) -> None:
        self.function = function
        self.dtype = dtype
        self._takes_arrays = False
        sample = torch.linspace(-4, 4, 64, dtype=torch.float64).to(dtype)
        try:
            self._call(sample)
        except AuditError:
            if dtype is torch.bfloat16:  # NumPy has no such dtype
                raise
            self._takes_arrays = True
            self._call(sample)
        self._require_elementwise(sample)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the function's values at numbers of its dtype; both are float64."""
        return self._call(inputs.to(self.dtype)).double()

    def _call(self, x: Tensor) -> Tensor:
        argument = x.numpy().copy() if self._takes_arrays else x.clone()  # it may overwrite its input
        try:
            with torch.no_grad():
                output = self.function(argument)
        except Exception as error:
            raise AuditError(
                f"The function cannot be called with {'an array' if self._takes_arrays else 'a tensor'} of "
                f"{self.dtype} and shape {tuple(x.shape)}: {message_of(error)}. Give one from tensor to tensor, or "
                "from NumPy array to NumPy array, and its dtype=."
            ) from error
        y = torch.as_tensor(np.asarray(output)) if self._takes_arrays else output
        if not isinstance(y, Tensor) or y.shape != x.shape or not y.is_floating_point():
            what = f"{y.dtype} of shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
            raise AuditError(
                f"The function makes {what} of {self.dtype} of shape {tuple(x.shape)}. Give an elementwise one: its "
                "output is as large as its input, and of real numbers."
            )
        return y.detach().cpu()

    def _require_elementwise(self, x: Tensor) -> None:
        """Check that values do not depend on the call, on the other elements or on their order."""
        y = self._call(x)
        if not _same(self._call(x), y):
            raise AuditError(
                "The function gives two answers to one input: it is random, or remembers calls. Put dropout and noise "
                "into evaluation mode first."
            )
        half = torch.cat([self._call(x[:32]), self._call(x[32:])])
        # A kernel may compute the last elements of an array by other instructions: the last digit may differ.
        allowed = 4 * spacing(y.double().nan_to_num(), y.dtype)
        for other in (half, self._call(x.flip(0)).flip(0)):
            if bool(((other.double() - y.double()).nan_to_num().abs() > allowed).any()):
                raise AuditError(
                    "The function is not elementwise: a value changes with the other elements of the input, as those "
                    "of a softmax or a normalisation do."
                )


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.nan_to_num(nan=-1.25), b.nan_to_num(nan=-1.25))
