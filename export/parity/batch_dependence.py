"""Do the rows of a batch see each other, and does a file give the same for the same input?

What joins or pads calls has to know the first, and shapes do not tell: the export asks the module, the proof the file.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from lit_gelu.errors import ExportError
from lit_gelu.export.copying import evaluation_copy
from lit_gelu.export.inputs import FlatModule, named_outputs
from lit_gelu.export.parity.criterion import distance
from lit_gelu.export.parity.drawn_values import Kind, integer_kinds
from lit_gelu.export.parity.execution import as_array
from lit_gelu.export.parity.input_families import Batch, random_batch
from lit_gelu.export.parity.report import BatchDifference, Repeatability
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
# Operators that draw random numbers, whatever their inputs say.
_RANDOM = frozenset({
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial",
})  # fmt: skip
Run = Callable[[Sequence[Tensor]], list[np.ndarray]]


def rows_depend(flat: FlatModule) -> bool:
    """Return whether rows of a module's batch give something else alone than among others, if that can be tried."""
    for batch in _batches(flat):
        differences = _differences(flat, batch)
        first = next(differences, None)
        if first is None:  # the module does not take the batch
            continue
        if not (first.suspicious or any(other.suspicious for other in differences)):
            return False
        # Where float64 does not run, it has to be more than rounding of float32.
        doubles = [t.double() if t.is_floating_point() else t for t in batch]
        exact = list(_differences(_in_float64(flat), doubles))
        if exact:
            return any(found.suspicious for found in exact)
        return any(found.of_output > _CERTAIN for found in _differences(flat, batch))
    return False


def _batches(flat: FlatModule) -> Iterator[Batch]:
    """Yield random rows, and then for a module that does not take them the sample's, rotated and as they are."""
    call, raw = flat.call, flat.preprocessing is not None
    rows = replace(call, tensors=call.resized(_ROWS), named=call.batch_axes)
    generator = torch.Generator().manual_seed(0)
    kinds: dict[int, Kind] = {}
    # Forward is the user's, and may raise anything: what does not run here is tried with the sample's values.
    with contextlib.suppress(Exception), _unchanged(flat.model), torch.random.fork_rng(devices=[]):
        kinds = integer_kinds(call, flat.run, frozenset({0} if raw else ()))[0]
    if kinds:
        yield random_batch(rows, _ROWS, generator, kinds, raw=raw)
    rotated = tuple(
        torch.stack([row.roll(number, -1) for number, row in enumerate(t)])  # so that no two rows are equal
        if not t.is_floating_point() and tuple(axes) == (0,) and t.ndim > 1
        else t
        for t, axes in zip(rows.tensors, call.batch_axes, strict=True)
    )
    yield random_batch(replace(rows, tensors=rotated), _ROWS, generator, {}, raw=raw)
    yield rows.tensors


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
    if of.ndim < 2:  # one axis is the rows alone
        return 0.0
    a, b = (value.astype(np.float64).reshape(-1, value.shape[-1]) for value in (y, of))
    largest = np.where(np.isfinite(b), np.abs(b), 0.0).max(axis=0, initial=0.0)
    units = np.maximum(largest, _LEAST_ENTRY * largest.max(initial=0.0))
    return float(np.nanmax(distance(a, b) / np.where(units == 0, 1.0, units), initial=0.0))


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


def batch_notes(recorded: bool, measured: Repeatability | None, types: Mapping[str, str]) -> list[str]:
    """Return a note if the export recorded that rows see each other, or a comparison of a file's batches shows it."""
    # Whole numbers say nothing: rounding may decide which of two is the largest.
    shown = [
        part
        for part in (measured.batches if measured else ())
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


def repeatability(
    run: Run, plain: Run, batches: Sequence[Sequence[Tensor]], outputs: Sequence[str], model: onnx.ModelProto
) -> Repeatability:
    """Run the file twice on the first batch, optimised and plain, and on its first rows, the other batches."""
    whole = run(batches[0])
    identical = _same(whole, run(batches[0])) and _same(plain(batches[0]), plain(batches[0]))
    parts = []
    for part in batches[1:]:
        sizes = len(part[0]), len(batches[0][0])
        for name, y, of in zip(outputs, run(part), whole, strict=True):
            rows = rows_of(y, of, slice(sizes[0]), sizes[1])
            if rows is not None:
                parts.append(BatchDifference(*sizes, name, relative_difference(y, rows)))
    return Repeatability(identical, tuple(random_nodes(model)), tuple(parts))


def rows_of(y: np.ndarray, whole: np.ndarray, chosen: slice, all_rows: int) -> np.ndarray | None:
    """Return the part of a large batch's output that the chosen rows give; ``None`` if it cannot be told."""
    # Every axis that is as long as the batch in both is cut, such as both of a similarity of all rows with all. An axis
    # that changes in another way, such as rows times heads, has no part that is known to be these rows'.
    rows = len(range(all_rows)[chosen])
    batch = [pair == (rows, all_rows) and rows != all_rows for pair in zip(y.shape, whole.shape, strict=False)]
    if y.ndim != whole.ndim or not any(batch):
        return None
    cut = whole[tuple(chosen if is_batch else slice(None) for is_batch in batch)]
    return cut if cut.shape == y.shape else None


def _same(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> bool:
    """Return whether two runs gave the same bits, NaNs at the same places included."""
    pairs = zip(first, second, strict=True)
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)


def relative_difference(y: np.ndarray, of: np.ndarray) -> float:
    """Return the largest difference in units of the largest value."""
    b = of.astype(np.float64)
    scale = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    return float(np.nanmax(distance(y, b), initial=0.0)) / (scale or 1.0)


def random_nodes(model: onnx.ModelProto) -> list[str]:
    """Name the nodes that draw random numbers: generators, and Dropout unless its training_mode is a constant false."""
    constants = {t.name: bool(onnx.numpy_helper.to_array(t)) for t in model.graph.initializer if not t.dims}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value" and not node.attribute[0].t.dims:
            constants[node.output[0]] = bool(onnx.numpy_helper.to_array(node.attribute[0].t))

    def is_live(node: onnx.NodeProto) -> bool:
        training = node.input[2] if node.op_type == "Dropout" and len(node.input) > 2 else ""
        return node.op_type in _RANDOM or (training != "" and constants.get(training, True))

    return [f"{node.op_type} {node.name}".strip() for node in model.graph.node if is_live(node)]
