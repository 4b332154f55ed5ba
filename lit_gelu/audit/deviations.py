"""Where a function leaves the activation that it is otherwise: NaN, infinities, saturation, subnormals, one side."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_gelu.audit.number_format import CORE, FloatFormat, NumberFormat

_LOPSIDED = 8.0  # times the error on the other side of 0


@dataclass(frozen=True)
class Deviation:
    """What is wrong, and at which inputs."""

    note: str
    mask: Tensor


def deviations(
    format: NumberFormat,  # noqa: A002
    x: Tensor,
    y: Tensor,
    values: Tensor,
    *,
    is_table: bool = False,
) -> Iterator[Deviation]:
    """Say where a function's values ``y`` leave an activation's ``values``, at rising inputs of a format."""
    # Of a table, NaN, infinities and saturation alone: its values near 0 are one, and at its ends it is off.
    values = format.clamped(values)
    ideal = format.rounded(values)
    for what, here, there in (("NaN", y.isnan(), ideal.isnan()), ("infinite", y.isinf(), ideal.isinf())):
        wrong = here & ~there
        if bool(wrong.any()):
            yield Deviation(f"{what} {_where(x, wrong)}", wrong)
    if isinstance(format, FloatFormat) and not is_table:
        tiny = torch.finfo(format.dtype).smallest_normal
        least = 2 * tiny * torch.finfo(format.dtype).eps  # below, half an input may be rounded either way
        flushed = (y == 0) & (ideal.abs() >= least) & (ideal.abs() < tiny) & (x.abs() < 4 * tiny)
        if bool(flushed.any()):
            yield Deviation("subnormal numbers become 0", flushed)
        at_zero = (x == 0) & (ideal == 0) & (y != 0) & y.isfinite()
        if bool(at_zero.any()):
            yield Deviation(f"0 becomes {float(y[at_zero]):.4g}", at_zero)
    finite = y.isfinite() & ideal.isfinite()
    judged = finite & (x.abs() <= CORE)
    for side, word in ((x > 0, "above"), (x < 0, "below")):
        places = torch.nonzero(side & finite).flatten()
        places = places if word == "above" else places.flip(0)  # outwards from 0
        if len(places) < 3:
            continue
        last = y[places[-1]]
        changes = torch.nonzero(y[places] != last).flatten()
        tail = places[int(changes[-1]) + 1 :] if len(changes) else places
        off = (ideal[tail] - last).abs() > format.allowed * format.unit(x[tail], ideal[tail])
        if len(tail) > 2 and bool(off.any()):
            mask = torch.zeros_like(side)
            mask[tail] = True
            judged &= ~mask
            yield Deviation(f"saturates at {float(last):.4g} {word} {float(x[tail[0]]):.4g}", mask)
    error = ((y - values).abs() / format.unit(x, values)).where(judged, 0.0)
    right, left = (float(error[side].max()) for side in (x >= 0, x <= 0))
    larger = max(right, left)
    is_lopsided = larger > format.allowed / 4 and larger > _LOPSIDED * min(right, left)
    if is_lopsided and not is_table and bool((x > 0).any() and (x < 0).any()):
        note = f"errors are on one side: {larger:.3g} units for x {'>' if right > left else '<'} 0"
        yield Deviation(note, torch.zeros_like(finite))


def _where(x: Tensor, mask: Tensor) -> str:
    places = x[mask]
    low, high = float(places[0]), float(places[-1])
    if bool(mask[(x >= low) & (x <= high)].all()):
        if high == float(x[-1]):
            return f"from {low:.6g} on"
        return f"up to {high:.6g}" if low == float(x[0]) else f"from {low:.6g} to {high:.6g}"
    return f"at {len(places)} inputs, the first {low:.6g}"
