"""What a function's values show beside the activation: a table, a coarser dtype inside, saturation, NaN, flushes."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_gelu.audit.black_box import BlackBox, spacing
from lit_gelu.audit.candidates import Formula

_COARSER = (torch.bfloat16, torch.float16, torch.float32)
_STEPS = 0.5  # a function with fewer steps than this share of its inputs is a table
_SLOPE = 1e-3  # a stretch of equal values is a step only where the activation itself rises by more
_LOPSIDED = 8.0  # times the error on the other side of 0


@dataclass(frozen=True)
class Structure:
    """How a function computes, as far as its values at core inputs tell."""

    dtype: torch.dtype  # the coarsest one that holds it: kernels are judged by its last place
    steps: Tensor | None = None  # the number of the step that each input is on, where it is a table
    inputs: Tensor | None = None  # what the inputs are rounded to before anything is computed
    notes: tuple[str, ...] = ()

    @property
    def explains(self) -> bool:
        """Whether values away from the activation's own are what this structure makes of them."""
        return bool(self.notes)

    def range_of(self, formula: Formula, x: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the least and largest value that an activation has where the function cannot tell inputs apart."""
        if self.inputs is not None:
            values = formula(self.inputs)
        if self.steps is None:
            return values, values
        count = int(self.steps[-1]) + 1
        ends = torch.stack([torch.roll(values, 1), values, torch.roll(values, -1)])  # a step ends between two inputs
        ends[0, 0], ends[2, -1] = values[0], values[-1]
        lowest = torch.full((count,), torch.inf, dtype=torch.float64)
        lowest = lowest.scatter_reduce(0, self.steps, ends.amin(0), "amin")
        highest = torch.full((count,), -torch.inf, dtype=torch.float64)
        highest = highest.scatter_reduce(0, self.steps, ends.amax(0), "amax")
        return lowest[self.steps], highest[self.steps]


def structure_of(box: BlackBox, x: Tensor, y: Tensor) -> Structure:
    """Find out whether a function is a table, or computes in a coarser dtype than that of its inputs."""
    bits = torch.finfo(box.dtype).bits
    for dtype in _COARSER:
        if torch.finfo(dtype).bits >= bits:
            break
        through = x.to(dtype).double()
        rounds_inputs = torch.equal(box(through).nan_to_num(), y.nan_to_num()) and not torch.equal(through, x)
        holds_outputs = torch.equal(y.to(dtype).double().nan_to_num(), y.nan_to_num())
        name = str(dtype).removeprefix("torch.")
        if rounds_inputs and holds_outputs:
            return Structure(dtype, None, through, (f"a table of {name}, or computed in it: inputs are rounded to it",))
        if rounds_inputs:
            return Structure(dtype, None, through, (f"inputs are rounded to {name}",))
        if holds_outputs and len(y.unique()) > 300:
            return Structure(dtype, None, None, (f"outputs are numbers of {name}",))
    if bits > 16:
        changes = torch.cat([torch.zeros(1, dtype=torch.long), (y[1:] != y[:-1]).long()]).cumsum(0)
        rising = (x[1:] - x[:-1]) * _SLOPE
        flat = (y[1:] == y[:-1]).double().mean()
        lengths = torch.bincount(changes)
        inner = lengths[1:-1]
        steps = int(changes[-1]) + 1
        if (
            float(flat) > _STEPS
            and 2 < steps
            and float(inner.double().median() if len(inner) else 0) >= 2
            and rising.numel()
        ):
            return Structure(box.dtype, changes, None, (f"a table of {steps} steps between -8 and 8",))
    return Structure(box.dtype)


def deviations(box: BlackBox, formula: Formula, x: Tensor, structure: Structure) -> Iterator[str]:
    """Say where a function leaves an activation, on all inputs: NaN, infinities, saturation, subnormals, one side."""
    y, values = box(x), formula(x)
    rounded = values.to(box.dtype).double()
    nan = y.isnan() & ~rounded.isnan()
    if bool(nan.any()):
        yield f"NaN {_where(x, nan)}"
    infinite = y.isinf() & ~rounded.isinf()
    if bool(infinite.any()):
        yield f"infinite {_where(x, infinite)}"
    tiny = torch.finfo(box.dtype).smallest_normal
    flushed = (y == 0) & (rounded.abs() < tiny) & (rounded != 0) & (x.abs() < tiny)
    if bool(flushed.any()):
        yield "subnormal inputs become 0"
    for side, edge in ((1, "above"), (-1, "below")):
        far = y[(x * side > 0) & y.isfinite()]
        ideal = rounded[(x * side > 0) & y.isfinite()]
        places = x[(x * side > 0) & y.isfinite()]
        if side < 0:
            far, ideal, places = far.flip(0), ideal.flip(0), places.flip(0)
        if len(far) < 3 or structure.steps is not None:
            continue
        last = len(far) - 1 - int((far.flip(0) != far[-1]).long().argmax()) if bool((far != far[-1]).any()) else -1
        start = last + 1
        if start < len(far) - 2 and bool((ideal[start:] - far[-1]).abs().max() > 1e-3):
            yield f"saturates at {float(far[-1]):.4g} {edge} {float(places[start]):.4g}"
    near = (x.abs() <= 8) & y.isfinite()
    error = ((y - values).abs() / spacing(torch.maximum(x.abs(), values.abs()), structure.dtype))[near]
    right, left = (float(error[side].max()) if bool(side.any()) else 0.0 for side in (x[near] > 0, x[near] < 0))
    if max(right, left) > 16 and max(right, left) > _LOPSIDED * min(right, left):
        yield f"errors are on one side: {max(right, left):.3g} ulp for x {'>' if right > left else '<'} 0"


def _where(x: Tensor, mask: Tensor) -> str:
    places = x[mask]
    low, high = float(places[0]), float(places[-1])
    if bool(mask[(x >= low) & (x <= high)].all()):
        if high == float(x[-1]):
            return f"from {low:.6g} on"
        return f"up to {high:.6g}" if low == float(x[0]) else f"from {low:.6g} to {high:.6g}"
    return f"at {len(places)} inputs, the first {low:.6g}"
