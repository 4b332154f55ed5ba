"""Do the rows of a batch see each other? What joins or pads calls has to know it, and shapes do not tell."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from lit_gelu.export.copying import evaluation_copy
from lit_gelu.export.errors import ExportError
from lit_gelu.export.inputs import FlatModule, named_outputs
from lit_gelu.export.parity.execution import as_array
from lit_gelu.export.parity.input_families import Batch, random_batch
from lit_gelu.export.parity.integer_inputs import Kind, integer_kinds
from lit_gelu.export.parity.repeatability import Repeatability, relative_difference, rows_of
from lit_gelu.sandbox import evaluation_sandbox

NOTE = (
    "The rows of the first axis see each other: what one gives depends on those beside it. Calls cannot be joined, "
    "padded or divided along it."
)
_ROWS = 4
# Rows that are run alone: some with one before and one behind them, since a net may look in one direction alone; one,
# since a net may swap a pair; and each is missing somewhere, since it may hold what decides for all.
_SELECTIONS = (slice(1, 3), slice(1), slice(0, 4, 3))
# In units of an output's largest value. Kernels add in another order for another number of rows, which stays below the
# first, but for long chains of layers. What is above it is asked again in float64, where no order of additions shows;
# where the module does not run in float64, it has to be more.
_SUSPICIOUS = 1e-4
_CERTAIN = 1e-2
_IN_16_BIT = 1e-1
# In units of the largest value of an entry of the last axis, since a large one would hide the others. Entries that are
# below the second in units of the output's largest may be rounding, also in float64: some modules compute a part of
# theirs in float32 there.
_OF_ENTRY = 1e-1
_LEAST_ENTRY = 1e-5


def rows_depend(flat: FlatModule) -> bool:
    """Return whether rows of a module's batch give something else alone than among others, if that can be tried."""
    for batch in _batches(flat):
        told = False
        for found in _differences(flat, batch):
            if found.suspicious:
                return _certain(flat, batch)
            told = True
        if told:
            return False
    return False


def _certain(flat: FlatModule, batch: Sequence[Tensor]) -> bool:
    """Return whether float64 shows it too, or where that does not run, the difference is no rounding of float32."""
    doubles = [t.double() if t.is_floating_point() else t for t in batch]
    told = False
    for found in _differences(_in_float64(flat), doubles):
        if found.suspicious:
            return True
        told = True
    return not told and any(found.of_output > _CERTAIN for found in _differences(flat, batch))


def _batches(flat: FlatModule) -> Iterator[Batch]:
    """Yield random rows, and then for a module that does not take them the sample's, rotated and as they are."""
    call, raw = flat.call, flat.preprocessing is not None
    rows = replace(call, tensors=call.resized(_ROWS), named=call.batch_axes)
    generator = torch.Generator().manual_seed(0)
    if kinds := _kinds(flat):
        yield random_batch(rows, _ROWS, generator, kinds, raw=raw)
    # Rotated, each row by another number, so that no two are equal.
    rotated = [_rotated(t, axes) for t, axes in zip(rows.tensors, call.batch_axes, strict=True)]
    yield random_batch(replace(rows, tensors=tuple(rotated)), _ROWS, generator, {}, raw=raw)
    yield rows.tensors


def _kinds(flat: FlatModule) -> dict[int, Kind]:
    """Return what inputs of whole numbers may hold, as far as the module tells."""
    pixels = frozenset({0} if flat.preprocessing is not None else ())
    try:
        with _unchanged(flat.model), torch.random.fork_rng(devices=[]):
            return integer_kinds(flat.call, flat.run, pixels)[0]
    except Exception:  # noqa: BLE001 - forward is the user's: what does not run here is tried with the sample's values
        return {}


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


@dataclass(frozen=True)
class _RowsAlone:
    """By how much rows alone differ from the same rows among others."""

    of_output: float  # in units of the output's largest value
    of_entry: float  # in units of the largest value of the entry of the last axis

    @property
    def suspicious(self) -> bool:
        return self.of_output > _SUSPICIOUS or self.of_entry > _OF_ENTRY


def _differences(flat: FlatModule | None, batch: Sequence[Tensor]) -> Iterator[_RowsAlone]:
    """Yield what each selection of rows shows; nothing of one that cannot be told."""
    whole = None if flat is None else _outputs(flat, batch)
    if flat is None or whole is None:
        return
    for rows in _SELECTIONS:
        part = _outputs(flat, flat.call.selected(batch, torch.arange(_ROWS)[rows]))
        if part is None or len(part) != len(whole):  # an output a row, say
            continue
        cut = [rows_of(y, of, rows, _ROWS) for y, of in zip(part, whole, strict=True)]
        pairs = [(y, of) for y, of in zip(part, cut, strict=True) if of is not None and np.isfinite(of).any()]
        if pairs:
            of_output = max(relative_difference(y, of) for y, of in pairs)
            yield _RowsAlone(of_output, max(_of_entries(y, of) for y, of in pairs))


def _of_entries(y: np.ndarray, of: np.ndarray) -> float:
    """Return the largest difference in units of the largest value of its entry of the last axis."""
    # One axis is the rows alone.
    if of.ndim < 2:
        return 0.0
    with np.errstate(invalid="ignore"):
        a, b = (value.astype(np.float64).reshape(-1, value.shape[-1]) for value in (y, of))
        error = np.where(a == b, 0.0, np.abs(a - b))
    largest = np.where(np.isfinite(b), np.abs(b), 0.0).max(axis=0, initial=0.0)
    units = np.maximum(largest, _LEAST_ENTRY * largest.max(initial=0.0))
    return float(np.nanmax(error / np.where(units == 0, 1.0, units), initial=0.0))


def _outputs(flat: FlatModule, batch: Sequence[Tensor]) -> list[np.ndarray] | None:
    """Return the outputs for a batch; ``None`` if the module does not take it."""
    try:
        with _unchanged(flat.model), torch.random.fork_rng(devices=[]):
            return [as_array(tensor) for _, tensor in named_outputs(flat.run([t.clone() for t in batch]))]
    except Exception:  # noqa: BLE001 - forward is the user's: that it does not take a batch says nothing of its rows
        return None


def _in_float64(flat: FlatModule) -> FlatModule | None:
    """Return a copy in float64; ``None`` if there is no room for one, or it cannot be copied once it has run."""
    try:
        preprocessing = None if flat.preprocessing is None else evaluation_copy(flat.preprocessing, torch.float64)
        return FlatModule(evaluation_copy(flat.model, torch.float64), flat.call, preprocessing, softmax=flat.softmax)
    except (ExportError, RuntimeError, MemoryError):
        return None


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
