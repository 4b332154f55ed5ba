"""Do the rows of a batch see each other? What joins or pads calls has to know it, and shapes do not tell."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from lit_gelu.export.copying import evaluation_copy
from lit_gelu.export.inputs import FlatModule, named_outputs
from lit_gelu.export.parity.execution import as_array
from lit_gelu.export.parity.input_families import Batch, random_batch
from lit_gelu.export.parity.repeatability import Repeatability, relative_difference, rows_of
from lit_gelu.sandbox import evaluation_sandbox

NOTE = (
    "The rows of the first axis see each other: what one gives depends on those beside it. Calls cannot be joined, "
    "padded or divided along it."
)
_ROWS = 4
_INNER = slice(1, 3)  # rows with one before and one behind them, since a net may look in one direction alone
# In units of an output's largest value. Kernels add in another order for another number of rows, which stays below the
# first, but for long chains of layers. What is above it is asked again in float64, where no order of additions shows;
# where the module does not run in float64, it has to be more.
_SUSPICIOUS = 1e-4
_CERTAIN = 1e-2
_IN_16_BIT = 1e-1


def rows_depend(flat: FlatModule) -> bool:
    """Return whether two rows of a module's batch give something else alone than among others, if that can be tried."""
    for batch in _batches(flat):
        found = _difference(flat, batch)
        if found is None:
            continue
        if found <= _SUSPICIOUS:
            return False
        exact = _difference(_in_float64(flat), [t.double() if t.is_floating_point() else t for t in batch])
        return found > _CERTAIN if exact is None else exact > _SUSPICIOUS
    return False


def _batches(flat: FlatModule) -> Iterator[Batch]:
    """Yield random rows, and then the sample's, for a module that does not take random ones."""
    # Whole numbers are the sample's. So that no two rows are equal, they are rotated, each row by another number.
    call = flat.call
    rotated = [_rotated(t, axes) for t, axes in zip(call.resized(_ROWS), call.batch_axes, strict=True)]
    rows = replace(call, tensors=tuple(rotated), named=call.batch_axes)
    yield random_batch(rows, _ROWS, torch.Generator().manual_seed(0), {}, raw=flat.preprocessing is not None)
    yield call.resized(_ROWS)


def _rotated(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    """Return a tensor of whole numbers with each row rotated by its number along the last axis."""
    if tensor.is_floating_point() or tuple(axes) != (0,) or tensor.ndim == 1:
        return tensor
    return torch.stack([row.roll(number, -1) for number, row in enumerate(tensor)])


@contextlib.contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Give modules their attributes and buffers back: some keep a mask, say, of the size of the last batch."""
    before = [(module, dict(vars(module))) for module in model.modules()]
    try:
        with evaluation_sandbox(model):
            yield
    finally:
        for module, attributes in before:
            vars(module).clear()
            vars(module).update(attributes)


def _difference(flat: FlatModule, batch: Sequence[Tensor]) -> float | None:
    """Return by how much the inner rows of a batch differ from the same rows alone; ``None`` if that cannot be told."""
    alone = flat.call.selected(batch, torch.arange(_ROWS)[_INNER])
    try:
        with _unchanged(flat.model), torch.random.fork_rng(devices=[]):
            whole, part = (_outputs(flat, given) for given in (batch, alone))
    except Exception:  # noqa: BLE001 - forward is the user's: that it does not take a batch says nothing of its rows
        return None
    cut = [rows_of(y, of, _INNER, _ROWS) for y, of in zip(part, whole, strict=True)]
    told = [(y, of) for y, of in zip(part, cut, strict=True) if of is not None and np.isfinite(of).any()]
    return max((relative_difference(y, of) for y, of in told), default=None)


def _outputs(flat: FlatModule, batch: Sequence[Tensor]) -> list[np.ndarray]:
    return [as_array(tensor) for _, tensor in named_outputs(flat.run([t.clone() for t in batch]))]


def _in_float64(flat: FlatModule) -> FlatModule:
    """Return a copy in float64."""
    preprocessing = None if flat.preprocessing is None else evaluation_copy(flat.preprocessing, torch.float64)
    return FlatModule(evaluation_copy(flat.model, torch.float64), flat.call, preprocessing, softmax=flat.softmax)


def batch_notes(recorded: bool, found: Repeatability | None, types: Mapping[str, str]) -> list[str]:
    """Return a note if the export recorded that rows see each other, or a comparison of a file's batches shows it."""
    # Whole numbers say nothing: rounding may decide which of two is the largest.
    shown = [
        part
        for part in (found.batches if found else ())
        if part.difference > (_IN_16_BIT if "float16" in types[part.output] else _CERTAIN)
        and any(name in types[part.output] for name in ("float", "double"))
    ]
    if not recorded and not shown:
        return []
    worst = max(shown, key=lambda part: part.difference, default=None)
    figure = (
        f" {worst.rows} of {worst.of} rows alone give {worst.output!r} with a difference of {worst.difference:.2g} of "
        "its largest value."
        if worst
        else ""
    )
    return [NOTE + figure]
