"""Each activation's nodes alone: over all 16-bit values, or over float32's range."""

import copy
import itertools
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from lit_gelu.activations.functional import derivative
from lit_gelu.export.parity.alone.function_error import ComputedFunction, computed_function, scaled_errors
from lit_gelu.export.parity.criterion import FACTOR, FLOOR, dtype_name, limit
from lit_gelu.export.parity.execution import SessionSetup, as_array, run_file
from lit_gelu.export.parity.rows import ELEMENTWISE, ParityRow
from lit_gelu.export.parity.subgraph import SiteNodes, cut_out
from lit_gelu.export.parity.ulp import overflowed, spacing

_NEAR_INFINITY = 2.0**300  # in float64: its cube is finite, and every float32 is far below

OK, FINDING, FAULT = "ok", "finding", "fault"


@dataclass(frozen=True)
class SpecialValue:
    """One input beside the ordinary ones."""

    name: str
    x: float
    file: float  # what the file computes
    pytorch: float  # what PyTorch computes in the file's dtype
    expected: float  # what the definition gives; at infinities its limit
    # OK, FINDING where the file gives something else and that does not decide, or FAULT: a NaN that does not stay one.
    verdict: str

    def said(self) -> str:
        """Return what the file computes beside what the definition gives, and whether it counts."""
        counts = "" if self.verdict == FAULT else ", which is noted and does not decide"
        return f"f({self.name}) = {self.file:.3g}, by definition {self.expected + 0.0:.3g}{counts}"


@dataclass(frozen=True)
class Rounding:
    """What an activation's 16-bit recipe is known to be off by, at any input."""

    units: float  # in the last place
    absolute: float  # beside that


@dataclass(frozen=True)
class WorstInput:
    """The input whose error is largest in units of what its recipe's rounding allows."""

    x: float
    error: float  # the absolute error there
    limit: float  # what that may be
    exact: float  # the definition's value


@dataclass(frozen=True)
class ElementwiseCheck:
    """One distinct activation of a file, run alone."""

    label: str  # its spec, with the site where several share it
    operators: tuple[str, ...]  # its nodes
    dtype: str
    count: int  # how many finite values it was run on
    exhaustive: bool  # whether those are all that the dtype has
    file: ComputedFunction  # how the file computes it
    pytorch: ComputedFunction  # how PyTorch does in that dtype
    limit: float  # what file.error may be
    nonfinite: int  # finite inputs where the file's output is not finite and PyTorch's is
    special: tuple[SpecialValue, ...]  # infinities, NaN, zeros, ends of the range
    # The input with the largest error by its recipe's rounding; None where that is not known.
    worst: WorstInput | None = None

    def row(self) -> ParityRow:
        """Return the check as a row that decides; NaN inputs that do not stay NaN count as not finite."""
        special = "; ".join(value.said() for value in self.special if value.verdict != OK)
        return ParityRow(
            comparison=ELEMENTWISE,
            inputs=self.label,
            output="",
            count=self.count,
            max_abs_error=self.file.max_abs_near,
            mean_abs_error=self.file.mean_error,
            scale=1.0,
            error=self.file.error,
            own=self.pytorch.error,
            limit=self.limit,
            spread=self.pytorch.max_abs_near,
            index="" if self.worst is None else f"x = {self.worst.x:.6g}",
            index_error=0.0 if self.worst is None else self.worst.error,
            index_limit=0.0 if self.worst is None else self.worst.limit,
            index_scale=0.0 if self.worst is None else abs(self.worst.exact),
            nonfinite=self.nonfinite + sum(value.verdict == FAULT for value in self.special),
            detail=f"{' '.join(self.operators)}; largest error for |x| <= 6 {self.file.max_abs_near:.3g} "
            f"({self.file.ulp_near_one:.3g} ULP for |x| <= 1), PyTorch {self.pytorch.max_abs_near:.3g} "
            f"({self.pytorch.ulp_near_one:.3g} ULP)" + (f"; {special}" if special else ""),
        )


def check_activation(
    model: onnx.ModelProto,
    found: SiteNodes,
    module: nn.Module,
    dtype: torch.dtype,
    setup: SessionSetup,
    *,
    label: str,
    tolerance: float = FLOOR,
    rounding: Rounding | None = None,
) -> ElementwiseCheck:
    """Compare one activation's own nodes with PyTorch, over all values of a 16-bit dtype or over float32's range."""
    # The limit is max(floor(dtype), 2 own) in units of max(1, |y64|). NaN must stay NaN, and a finite input must not
    # give a NaN or an infinity that PyTorch does not give. What comes of infinite inputs is reported and does not
    # decide: PyTorch's kernels do not agree among themselves there (F.gelu(-inf) is NaN), and a net whose
    # pre-activations are infinite is lost already. So is whether subnormal numbers are kept or flushed to zero. In 16
    # bit each value may also be off by twice its recipe's rounding or twice what PyTorch is off by there: in units of
    # max(1, |y64|) a tail could be any other function's.
    twin = _one_channel(copy.deepcopy(module)).cpu().eval()
    x, (names, special) = sweep_values(dtype), special_values(dtype)
    with setup.opened(cut_out(model, found)) as predictor:
        y, y_special = (run_file(predictor, (values,))[0].astype(np.float64) for values in (x, special))
    exact = overflowed(_definition(twin, x.double()), dtype)
    own = _call(twin.to(dtype), x)
    points = as_array(x).astype(np.float64)
    file, pytorch = (computed_function(points, values, exact, dtype) for values in (y, own))
    lost = ~np.isfinite(scaled_errors(y, exact)) & np.isfinite(scaled_errors(own, exact))
    return ElementwiseCheck(
        label=label,
        operators=tuple(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in found.nodes),
        dtype=dtype_name(dtype),
        count=len(x),
        exhaustive=dtype != torch.float32,
        file=file,
        pytorch=pytorch,
        limit=limit(pytorch.error, dtype, tolerance),
        nonfinite=int(np.count_nonzero(lost)),
        special=_special_values(names, special, y_special, twin, dtype),
        worst=None if rounding is None else _worst_input(points, y, exact, own, dtype, rounding),
    )


def _worst_input(
    points: np.ndarray, y: np.ndarray, exact: np.ndarray, own: np.ndarray, dtype: torch.dtype, rounding: Rounding
) -> WorstInput:
    """Return the input with the largest error by its recipe's rounding."""
    finite = np.isfinite(y) & np.isfinite(exact)
    points, y, exact, own = points[finite], y[finite], exact[finite], own[finite]
    theirs = np.where(np.isfinite(own), np.abs(own - exact), 0.0)
    limits = FACTOR * np.maximum(rounding.units * spacing(exact, dtype) + rounding.absolute, theirs)
    errors = np.abs(y - exact)
    i = int(np.argmax(errors / limits))
    return WorstInput(float(points[i]), float(errors[i]), float(limits[i]), float(exact[i]))


@torch.no_grad()
def _call(module: nn.Module, x: Tensor) -> np.ndarray:
    """Return what a module computes, in float64."""
    return as_array(module(x.clone())).astype(np.float64)  # it may overwrite its input


@torch.no_grad()
def _definition(module: nn.Module, x: Tensor) -> np.ndarray:
    """Return the activation in float64, by the closed form of the registry where it has one."""
    # torch's own float64 kernels are no reference for tails: ``x (1 + erf(x / sqrt(2))) / 2`` is 0 below -8.3.
    return as_array(derivative(module.double(), x.clone(), order=0)).astype(np.float64)


def _special_values(
    names: list[str], x: Tensor, y: np.ndarray, twin: nn.Module, dtype: torch.dtype
) -> tuple[SpecialValue, ...]:
    """Judge the special values; of several NaNs the first that is lost is kept, else the first."""
    own = _call(twin.to(dtype), x)
    wide = x.double()
    limits = torch.where(wide.isinf(), wide.sign() * _NEAR_INFINITY, wide)
    expected = overflowed(_definition(twin, limits), dtype)
    kept: dict[str, SpecialValue] = {}
    values = zip(wide.tolist(), y.tolist(), own.tolist(), expected.tolist(), strict=True)
    for name, (value, file, pytorch, defined) in zip(names, values, strict=True):
        entry = SpecialValue(name, value, file, pytorch, defined, _verdict(value, file, defined, dtype))
        if name not in kept or (entry.verdict == FAULT and kept[name].verdict != FAULT):
            kept[name] = entry
    return tuple(kept.values())


def _verdict(x: float, y: float, expected: float, dtype: torch.dtype) -> str:
    """Judge one special value."""
    if np.isnan(x):
        return OK if np.isnan(y) else FAULT
    if np.isinf(x):
        near = y == expected or abs(y - expected) <= 1e-2 * abs(expected)
        return OK if near else FINDING
    info = torch.finfo(dtype)
    if info.smallest_normal * info.eps / 2 < abs(expected) < info.smallest_normal:
        return OK if y != 0 else FINDING  # a subnormal number that was flushed to zero
    return OK  # an end of the range is among the swept values, which decide


def _one_channel(module: nn.Module) -> nn.Module:
    """Reduce an activation with one value a channel to its first channel, as `cut_out` does."""
    for parameter in itertools.chain(module.parameters(), module.buffers()):
        if parameter.ndim and parameter.numel() > 1:
            parameter.data = parameter.data.reshape(-1)[:1]
    return module


STRIDE = 16411  # a prime: every binade is met at other mantissas; about 260,000 values
SPECIAL: tuple[tuple[str, float], ...] = (
    ("-inf", -np.inf),
    ("inf", np.inf),
    ("nan", np.nan),
    ("-0", -0.0),
    ("0", 0.0),
)


@cache
def all_values(dtype: torch.dtype) -> Tensor:
    """Return every value of a 16-bit dtype, infinities and NaNs included, in the order of its bit patterns."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


@cache
def strided_values() -> Tensor:
    """Return every 16411th float32 bit pattern (NaNs left out) and 2^16 points over [-20, 20]."""
    patterns = np.arange(0, 2**32, STRIDE, dtype=np.uint64).astype(np.uint32).view(np.float32)
    values = [patterns[np.isfinite(patterns)], np.linspace(-20, 20, 2**16, dtype=np.float32)]
    return torch.from_numpy(np.concatenate(values))


def sweep_values(dtype: torch.dtype) -> Tensor:
    """Return the finite values that an activation is swept over: all in 16 bit, a strided selection in float32."""
    if dtype == torch.float32:
        return strided_values()
    values = all_values(dtype)
    return values[values.isfinite()]


def special_values(dtype: torch.dtype) -> tuple[list[str], Tensor]:
    """Return names and values of infinities, NaN (in 16 bit every one), zeros and the ends of both ranges."""
    info = torch.finfo(dtype)
    ends = {
        "-max": info.min,
        "max": info.max,
        "-smallest normal": -info.smallest_normal,
        "-subnormal": -info.smallest_normal / 4,
        "smallest subnormal": info.smallest_normal * info.eps,
    }
    names, numbers = [name for name, _ in SPECIAL] + list(ends), [value for _, value in SPECIAL] + list(ends.values())
    values = torch.tensor(numbers, dtype=torch.float64).to(dtype)
    if dtype == torch.float32:
        return names, values
    nans = all_values(dtype)[all_values(dtype).isnan()]
    return [*names, *["nan"] * len(nans)], torch.cat([values, nans])
