"""How a function computes, as far as its values tell: through a table of steps, or in a coarser dtype than its own."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_gelu.audit.black_box import BlackBox
from lit_gelu.audit.number_format import CORE, FloatFormat, NumberFormat, distinct

_COARSER = (torch.bfloat16, torch.float16, torch.float32)
_DENSE = 2**16 + 1  # inputs among which steps are looked for
_STEP = 4  # neighbouring inputs of one value, at least
_JUMP = 16.0  # units: a smaller rise is what rounding makes of a smooth function
_FEWEST_STEPS = 8
_PLACES = {"the start": 0.0, "the middle": 0.5, "the end": 1.0}  # of a step, where its value is the activation's


@dataclass(frozen=True)
class Structure:
    """How a function computes.

    Args:
        format: The coarsest one that holds its values: kernels are judged by its last place.
        inputs: What the function may see instead of its core inputs, by how the notes put it.
        is_table: Whether it looks values up.
    """

    format: NumberFormat
    inputs: dict[str, Tensor]
    is_table: bool = False


def structure_of(box: BlackBox, x: Tensor, y: Tensor) -> Structure:
    """Find out whether a function is a table, or computes in a coarser dtype than that of its inputs."""
    if not isinstance(box.format, FloatFormat) or not box.format.wide:
        return Structure(box.format, {"": x})
    for dtype in _COARSER:
        coarse = FloatFormat(dtype)
        if torch.finfo(dtype).bits >= torch.finfo(box.format.dtype).bits:
            break
        rounds_inputs = _rounds_inputs(box, coarse, x)
        rounds_outputs = _equal(coarse.rounded(y), y)
        # With fewer values, as a sign has, the rounding of inputs does not show.
        if rounds_inputs and len(distinct(y[coarse.rounded(x) != x])) >= _FEWEST_STEPS:
            outputs = "and so are outputs" if rounds_outputs else "outputs are not"
            note = f"inputs are rounded to {coarse.name}, {outputs}: a table of it, or arithmetic in it"
            return Structure(coarse if rounds_outputs else box.format, {note: coarse.rounded(x)})
        if rounds_outputs and len(distinct(y)) > len(x) // 8:
            return Structure(coarse, {f"outputs are rounded to {coarse.name}": x})
    edges = step_edges(box)
    if len(edges) < _FEWEST_STEPS:
        return Structure(box.format, {"": x})
    steps = len(edges) + int(y[0] != 0)  # left of a table, most activations are 0
    places = {
        f"a table of {steps} steps from {float(edges[0]):.4g} to {float(edges[-1]):.4g}, right at {place} of each": at
        for place, at in _seen_through_steps(edges, x)
    }
    return Structure(box.format, places, is_table=True)


def step_edges(box: BlackBox) -> Tensor:
    """Return where a function jumps from one flat step to the next, to the last place; rising."""
    x = box.format.rounded(torch.linspace(-CORE, CORE, _DENSE, dtype=torch.float64))
    y = box(x)
    lengths = torch.unique_consecutive(y, return_counts=True)[1]
    ends = lengths.cumsum(0)[:-1] - 1  # the last place of each run of equal values but the last run
    jumps = (y[ends + 1] - y[ends]).abs() > _JUMP * box.format.unit(x[ends], y[ends])
    edges = ends[jumps & (lengths[:-1] >= _STEP) & (lengths[1:] >= _STEP)]
    low, high, before = x[edges], x[edges + 1], y[edges]
    for _ in range(40):  # bisection
        middle = box.format.rounded((low + high) / 2)
        if bool(((middle == low) | (middle == high)).all()):
            break
        unchanged = box(middle) == before
        low, high = torch.where(unchanged, middle, low), torch.where(unchanged, high, middle)
    return high


def _seen_through_steps(edges: Tensor, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Give, for each place that a step's value may be right at, what a table makes of inputs."""
    after = torch.searchsorted(edges, x, right=True)
    inside = (after > 0) & (after < len(edges))
    low, high = edges[(after - 1).clamp(min=0)], edges[after.clamp(max=len(edges) - 1)]
    usual = (edges[1:] - edges[:-1]).median()
    inside &= high - low < 3 * usual  # what lies between two tables, or two flat tails, is no step
    for place, share in _PLACES.items():
        yield place, torch.where(inside, low + share * (high - low), x)


def _rounds_inputs(box: BlackBox, coarse: FloatFormat, x: Tensor) -> bool:
    """Return whether a function sees its inputs rounded: numbers of the coarse dtype, and those next to them, too."""
    # The steps of a table may begin at numbers of the coarse dtype: what is just below them tells.
    numbers = coarse.rounded(x)
    neighbours = [torch.nextafter(box.format.encoded(numbers), box.format.encoded(numbers + way)) for way in (-1, 1)]
    inputs = torch.cat([x, *(each.double() for each in neighbours)])
    return _equal(box(coarse.rounded(inputs)), box(inputs))


def _equal(first: Tensor, second: Tensor) -> bool:
    return torch.equal(first.nan_to_num(), second.nan_to_num())
