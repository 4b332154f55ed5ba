"""The numbers that a function takes and gives: floats of a dtype, or integers with a scale and a zero point."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lit_gelu.errors import ArgumentError, shown

DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SHORT = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}

CORE = 12.0  # as far from 0 as activations differ by more than rounding
_CORE_INPUTS = 6001
SMALL = 2.0**-8  # below, activations are lines
_INTERMEDIATE = 0.25  # what kernels round on their way to a value, such as a sigmoid, is at least that large
_MANTISSAS = 12  # inputs of each sign and power of two, of a wide dtype


@dataclass(frozen=True)
class FloatFormat:
    """Floating-point numbers of a dtype."""

    dtype: torch.dtype

    @property
    def name(self) -> str:
        """The dtype's name, without torch's."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def wide(self) -> bool:
        """Whether it has more numbers than can be tried."""
        return torch.finfo(self.dtype).bits > 16

    @property
    def allowed(self) -> float:
        """How many units a sound kernel may be off."""
        return 64.0 if self.wide else 2.0

    @property
    def usual(self) -> float:
        """How many units a sound kernel is off at most inputs (root mean square)."""
        return 8.0 if self.wide else 0.35

    def core_inputs(self) -> Tensor:
        """Return all numbers of 16 bits from -12 to 12, or equally spaced ones of a wider dtype: float64, rising."""
        if not self.wide:
            values = self.all_inputs()
            return values[(values.abs() <= CORE) & ((values.abs() >= SMALL) | (values == 0))]
        return distinct(torch.linspace(-CORE, CORE, _CORE_INPUTS, dtype=torch.float64).to(self.dtype).double())

    def all_inputs(self) -> Tensor:
        """Return all finite numbers of 16 bits, or some of every power of two of a wider dtype: float64, rising."""
        if not self.wide:
            bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
            values = bits.view(self.dtype).double()
            return distinct(values[values.isfinite()])
        info = torch.finfo(self.dtype)
        lowest = round(math.log2(info.smallest_normal * info.eps))  # of the subnormal numbers
        powers = torch.arange(lowest, round(math.log2(info.max)), dtype=torch.float64).exp2()
        mantissas = 1 + torch.arange(_MANTISSAS, dtype=torch.float64) / _MANTISSAS
        sizes = torch.outer(powers, mantissas).flatten().to(self.dtype).double()
        return distinct(torch.cat([-sizes, torch.zeros(1, dtype=torch.float64), sizes, self.core_inputs()]))

    def spacing(self, values: Tensor) -> Tensor:
        """Return the distance of neighbouring numbers where values lie: a unit in the last place."""
        info = torch.finfo(self.dtype)
        sizes = values.abs().nan_to_num().clamp(info.smallest_normal, info.max)
        return torch.frexp(sizes).exponent.sub(1).double().exp2() * info.eps

    def unit(self, x: Tensor, values: Tensor) -> Tensor:
        """Return what a kernel's error is measured in: the spacing at the largest of input, value and a quarter."""
        return self.spacing(torch.maximum(x.abs(), values.abs()).clamp(min=_INTERMEDIATE))

    def rounded(self, values: Tensor) -> Tensor:
        """Return the nearest numbers of the format, as float64; of two, the even one."""
        step = self.spacing(values)  # torch's own conversion to 16 bit rounds twice, first to float32
        return ((values / step).round() * step).to(self.dtype).double()

    def clamped(self, values: Tensor) -> Tensor:
        """Return values as far as the format reaches."""
        return values

    def encoded(self, x: Tensor) -> Tensor:
        """Return real numbers as what a function is called with."""
        return x.to(self.dtype)

    def decoded(self, y: Tensor) -> Tensor:
        """Return what a function gives as real numbers in float64."""
        return y.double()


@dataclass(frozen=True)
class QuantizedDtype:
    """Integers of 8 bits that stand for ``scale * (q - zero_point)``.

    Args:
        scale: Of the inputs.
        zero_point: Of the inputs.
        output_scale: Of the outputs; by default as of the inputs.
        output_zero_point: Of the outputs; by default as of the inputs.
        signed: Whether they are int8; else uint8.

    Raises:
        ArgumentError: If a scale is not a positive number, or a zero point is no integer of 8 bits.
    """

    scale: float
    zero_point: int = 0
    output_scale: float | None = None
    output_zero_point: int | None = None
    signed: bool = True

    wide = False
    allowed = 1.001  # a step: tables are rounded, and so are the scales that made them
    usual = 0.35

    def __post_init__(self) -> None:
        low, high = self._limits
        for scale in (self.scale, self._output_scale):
            if not (isinstance(scale, (int, float)) and math.isfinite(scale) and scale > 0):
                raise ArgumentError(f"scale={shown(scale)} is not accepted. Give a finite number above 0.")
        for zero in (self.zero_point, self._output_zero):
            if type(zero) is not int or not low <= zero <= high:
                raise ArgumentError(f"zero_point={shown(zero)} is not accepted. Give an integer from {low} to {high}.")

    @property
    def _limits(self) -> tuple[int, int]:
        return (-128, 127) if self.signed else (0, 255)

    @property
    def _output_scale(self) -> float:
        return self.scale if self.output_scale is None else self.output_scale

    @property
    def _output_zero(self) -> int:
        return self.zero_point if self.output_zero_point is None else self.output_zero_point

    @property
    def name(self) -> str:
        """The integers' name."""
        return "int8" if self.signed else "uint8"

    @property
    def dtype(self) -> torch.dtype:
        """What a function is called with."""
        return torch.int8 if self.signed else torch.uint8

    def all_inputs(self) -> Tensor:
        """Return what all 256 integers stand for."""
        low, high = self._limits
        return (torch.arange(low, high + 1, dtype=torch.float64) - self.zero_point) * self.scale

    core_inputs = all_inputs

    def spacing(self, values: Tensor) -> Tensor:
        """Return an output's step."""
        return torch.full_like(values, self._output_scale)

    def unit(self, x: Tensor, values: Tensor) -> Tensor:
        """Return an output's step."""
        return self.spacing(torch.maximum(x, values))

    def rounded(self, values: Tensor) -> Tensor:
        """Return what the nearest integers stand for, as float64."""
        low, high = self._limits
        quantised = (values / self._output_scale + self._output_zero).round().clamp(low, high)
        return (quantised - self._output_zero) * self._output_scale

    def clamped(self, values: Tensor) -> Tensor:
        """Return values as far as the integers reach."""
        low, high = ((limit - self._output_zero) * self._output_scale for limit in self._limits)
        return values.clamp(low, high)

    def encoded(self, x: Tensor) -> Tensor:
        """Return real numbers as what a function is called with."""
        return (x / self.scale + self.zero_point).round().to(self.dtype)

    def decoded(self, y: Tensor) -> Tensor:
        """Return what a function gives as real numbers in float64."""
        return (y.double() - self._output_zero) * self._output_scale


def distinct(values: Tensor) -> Tensor:
    """Return the different ones of values, rising."""
    rising: Tensor = torch.unique(values)
    return rising


NumberFormat = FloatFormat | QuantizedDtype


def number_format(dtype: Any) -> NumberFormat:
    """Return the format that a dtype, its name or a `QuantizedDtype` stands for."""
    if isinstance(dtype, QuantizedDtype):
        return dtype
    name = str(dtype).removeprefix("torch.")
    accepted = DTYPES.get(SHORT.get(name, name))
    if accepted is None:
        names = ", ".join(DTYPES)
        raise ArgumentError(f"dtype={shown(dtype)} is not accepted. Give one of {names}, or a QuantizedDtype for int8.")
    return FloatFormat(accepted)
