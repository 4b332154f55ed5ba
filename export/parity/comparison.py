"""The file against the module, on families of inputs: each output as a whole and by index."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from lit_gelu.errors import ModelFileError, ModelInputError
from lit_gelu.export.copying import relative_difference
from lit_gelu.export.input_kinds import Kind
from lit_gelu.export.inputs import Batch
from lit_gelu.export.parity.criterion import (
    FACTOR,
    UNIT_ROUNDOFF,
    Differences,
    WorstIndex,
    distance,
    fills,
    floor,
    limit,
    smallest_error,
    worst_index,
    worst_position,
)
from lit_gelu.export.parity.decoding import PROMPTS, STEPS, Decoder
from lit_gelu.export.parity.input_families import DATA, SAMPLE, Family
from lit_gelu.export.parity.report import VS_FLOAT64, VS_TRAINED, ParityRow
from lit_gelu.export.parity.runs import Candidates, Outputs, References, Run

# What PyTorch is off by, in units of the largest output, is rounding up to here; above, float32 and float64 are two
# functions of that input. In 16 bit, so many unit roundoffs.
_ROUNDING, _ROUNDINGS = 1e-2, 16


class OutputErrors:
    """All differences of one output on one family."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.file = Differences(dtype)  # from PyTorch in float64, or in the file's dtype where that is all there is
        self.spread = Differences(dtype)  # of PyTorch in the file's dtype from float64
        self.gap = Differences(dtype)  # of the file from the module as trained
        self.unrun = ""  # why the file does not run on a batch


@dataclass(frozen=True)
class FamilyErrors:
    """What the runs on one family of inputs show, before it is judged."""

    family: Family
    outputs: dict[str, OutputErrors]
    hardest: Batch | None  # the batch with the largest difference; None without batches


@dataclass(frozen=True)
class WorstBatch:
    """The batch that shows the largest error in units of its limit."""

    excess: float  # that error
    batch: Batch
    family: Family  # that it is of, by whose limits it is judged


@dataclass
class Comparison:
    """Compares family by family; what is usual for an output is learned on the families that are no extremes."""

    run: Run  # runs the file: inputs in its order and dtypes, outputs as arrays
    references: References
    outputs: Sequence[str]  # names of the file's outputs
    inputs: Callable[[Batch], Batch]  # rounds a batch to the file's dtypes
    dtype: torch.dtype
    tolerance: float  # what float32 arithmetic may cost, in units of the largest output
    reference: str = VS_FLOAT64  # the comparison that decides
    untried: list[str] = field(default_factory=list)  # which families the module does not take, and why
    refused: set[str] = field(default_factory=set)  # those families
    unrun: set[str] = field(default_factory=set)  # the families on which the file does not run
    worst: WorstBatch | None = None
    rounding: float = 0.0  # what rounding the caller's float64 to the file's float32 moves outputs by
    _usual: dict[str, Differences] = field(default_factory=dict)  # PyTorch's own errors by index
    _scales: dict[str, float] = field(default_factory=dict)  # the largest magnitude of each output
    _own_errors: dict[tuple[str, str], float] = field(default_factory=dict)  # PyTorch's own error by family and output

    def compare(self, families: Iterable[Family]) -> list[ParityRow]:
        """Compare on families of inputs, and judge each by what all of them have shown."""
        return [row for errors in [self._run(family) for family in families] for row in self._judge(errors)]

    def decode(self, decoder: Decoder | None, kinds: Mapping[int, Kind]) -> list[ParityRow]:
        """Compare call by call, each with the cache that it returned: the file's, PyTorch's, and that in float64."""
        if decoder is None:
            return []
        references = self.references
        batches = (1, 2) if any(references.call.batched) else (references.call.batch_size,)
        rows: list[ParityRow] = []
        for batch_size, prompt in zip(batches, PROMPTS, strict=False):
            family = Family(f"decoding, batch {batch_size}, {prompt} + {STEPS} calls", ())
            calls = [*decoder.calls(kinds, batch_size, prompt)]
            baseline = partial(references.run, references.baseline, dtype=references.baseline_dtype)
            exact: list[list[np.ndarray]] | list[None] = [None] * len(calls)
            try:
                baselines = [y for _, y in decoder.outputs(baseline, calls)]
                if references.exact is not None:
                    in_float64 = partial(references.run, references.exact, dtype=references.exact_dtype)
                    exact = [y for _, y in decoder.outputs(in_float64, calls)]
            except Exception as error:  # noqa: BLE001 - forward is the user's: it may not take an empty cache
                self.untried.append(f"{family.name} was not tried: forward fails ({error}).")
                continue
            errors = {name: OutputErrors(self.dtype) for name in self.outputs}
            of_file = decoder.outputs(lambda batch: self.run(self.inputs(batch)), calls)
            for y_baseline, y_exact in zip(baselines, exact, strict=True):
                try:
                    fed, y = next(of_file)
                except (ModelFileError, ModelInputError) as error:  # what the module takes, the file does not
                    for output, value in zip(errors.values(), y_baseline, strict=False):
                        output.unrun = str(error)
                        output.file.add(None, value)
                    break
                self._add(errors, [*y], Outputs(y_baseline, y_exact, None), fed, family)
            for name, output in errors.items():
                self._note_own_error(family, name, output)
            rows += self._judge(FamilyErrors(family, errors, None))
        return rows

    def excess_on(self, worst: WorstBatch) -> Callable[[list[np.ndarray]], float]:
        """Return what judges other outputs for a batch as its family was judged: the largest error by its limit."""
        reference = self.references.outputs(worst.batch)

        def excess(y: list[np.ndarray]) -> float:
            errors = {name: OutputErrors(self.dtype) for name in self.outputs}
            self._add(errors, y, reference, worst.batch, worst.family)
            return max((row.excess for row in self._rows(FamilyErrors(worst.family, errors, None))), default=0.0)

        return excess

    def _run(self, family: Family) -> FamilyErrors:
        """Run file and module on a family of inputs; what is usual then holds it too, unless it is an extreme."""
        errors = {name: OutputErrors(self.dtype) for name in self.outputs}
        hardest: Batch | None = None
        peak = -1.0
        for batch in family.batches:
            fed = self.inputs(batch)
            if (reference := self._reference(batch, fed, family)) is None:
                continue
            fed, reference = self._of_one_meaning(fed, reference, family)
            try:
                y = self.run(fed)
            except ModelFileError as error:  # such as for a window as large as the sample, and smaller inputs
                self.unrun.add(family.name)
                values = reference.baseline if reference.exact is None else reference.exact
                for output, value in zip(errors.values(), values, strict=False):
                    output.unrun = str(error)
                    output.file.add(None, value)
                continue
            self._add(errors, y, reference, fed, family)
            largest = max((output.file.max_abs for output in errors.values()), default=0.0)
            if largest > peak:
                hardest, peak = fed, largest
        for name, output in errors.items():
            if not family.extreme:
                self._scales[name] = max(output.file.scale, self._scales.get(name, 0.0))
            self._note_own_error(family, name, output)
            usual = self._usual.setdefault(name, Differences(self.dtype))
            if self._is_usual(family, name):  # where rounding explains the errors by index
                usual.pool(output.spread)
        return FamilyErrors(family, errors, hardest)

    def _reference(self, batch: Batch, fed: Batch, family: Family) -> Outputs | None:
        """Run the module; note that it does not take what is no data of the user's, such as a batch of one row."""
        try:
            reference = self.references.outputs(fed)
        except Exception as error:
            if family.name == DATA:
                shapes = ", ".join(str(list(tensor.shape)) for tensor in fed)
                raise ModelInputError(f"The module does not take a batch of the data ({shapes}): {error}") from error
            self.refused.add(family.name)
            self.untried.append(f"{family.name} was not tried: forward fails ({error}).")
            return None
        wide = any(t.dtype == torch.float64 and f.dtype == torch.float32 for t, f in zip(batch, fed, strict=True))
        if wide and self.references.exact is not None and reference.exact is not None:
            exact = self.references.run(self.references.exact, batch, self.references.exact_dtype)
            moved = map(relative_difference, reference.exact, exact)
            self.rounding = max([self.rounding, *filter(math.isfinite, moved)])
        return reference

    def _is_usual(self, family: Family, name: str) -> bool:
        return not family.extreme and self._own_errors.get((family.name, name), 0.0) <= self._largest_own_error

    @property
    def _largest_own_error(self) -> float:
        """What PyTorch is off by, in units of the largest output, where rounding explains it."""
        return max(_ROUNDING, _ROUNDINGS * UNIT_ROUNDOFF[self.dtype])

    def _of_one_meaning(self, batch: Batch, reference: Outputs, family: Family) -> tuple[Batch, Outputs]:
        """Leave out drawn rows on which float32 and float64 are two functions, as under a mask that keeps nothing."""
        if reference.exact is None or family.name in (SAMPLE, DATA) or family.extreme:
            return batch, reference
        baseline = reference.baseline
        if self.dtype != torch.float32:
            baseline = self.references.run(self.references.float32, batch, torch.float32)
        bad = np.zeros(len(batch[0]), dtype=bool)
        for y, exact in zip(baseline, reference.exact, strict=True):
            if y.ndim and y.shape == exact.shape and len(y) == len(bad) and y.dtype.kind == "f":
                scale = float(np.abs(exact[np.isfinite(exact)]).max(initial=0.0))
                off = np.nan_to_num(distance(y, exact), nan=0.0).reshape(len(y), -1).max(1, initial=0.0)
                bad |= off > _ROUNDING * scale
        if not bad.any() or bad.all() or not any(self.references.call.batched):  # of a fixed batch no row can go
            return batch, reference
        self.untried.append(
            f"{family.name}: {bad.sum()} of {len(bad)} rows were left out, on which PyTorch in float32 and in float64 "
            "differ by more than rounding, as under a mask that keeps nothing."
        )
        kept = self.references.call.selected(batch, torch.from_numpy(np.flatnonzero(~bad)))
        return kept, self.references.outputs(kept)

    def _add(
        self, errors: dict[str, OutputErrors], y: list[np.ndarray], reference: Outputs, batch: Batch, family: Family
    ) -> None:
        if len(reference.baseline) != len(y):
            raise ModelInputError(
                f"The file has {len(y)} outputs ({', '.join(self.outputs)}), the module returns "
                f"{len(reference.baseline)} tensors. Give the module that the file was exported from."
            )
        exact = reference.exact or []
        differing = [i for i, r in enumerate(exact) if r.dtype.kind in "iu" and not np.array_equal(y[i], r)]
        candidates = self.references.candidates(batch) if differing else []
        for i in differing:
            y[i] = without_ties(y[i], exact[i], *candidates[i], self.dtype, self.tolerance)
        for i, output in enumerate(errors.values()):
            baseline = reference.baseline[i]
            excused = baseline if family.extreme else None
            if reference.exact is None:
                output.file.add(y[i], baseline, excused)
            else:
                filled = fills(y[i], baseline, exact[i], self.dtype)
                if family.name in (SAMPLE, DATA) and filled.shape == y[i].shape and y[i].dtype.kind == "f":
                    missing = np.isnan(y[i]) & np.isnan(baseline) & np.isnan(exact[i])  # as the user's data may be
                    filled = filled if missing.all() else filled | missing
                output.file.add(y[i], exact[i], excused, filled)
                output.spread.add(baseline, exact[i], excused, filled)
            if reference.trained is not None and family.gap:
                output.gap.add(y[i], reference.trained[i])

    def _note_own_error(self, family: Family, name: str, output: OutputErrors) -> None:
        if output.spread.count:
            scale = self._scale(family, name, output)
            self._own_errors[family.name, name] = output.spread.relative(scale, smallest_error(self.dtype))

    def _scale(self, family: Family, name: str, output: OutputErrors) -> float:
        """Return the largest magnitude of the reference; on extremes, at least what it is on other inputs."""
        return max(output.file.scale, self._scales.get(name, 0.0) if family.extreme else 0.0)

    def _judge(self, errors: FamilyErrors) -> list[ParityRow]:
        """Judge each output on a family, against the module and as a gap to the module as trained."""
        # Before an error counts as a breach, PyTorch's own error is measured again, with weights and inputs moved by a
        # unit in the last place: a net that amplifies rounding shows that on some rows only, and not in every run.
        rows, family = self._rows(errors), errors.family
        if errors.hardest is None:
            return rows
        if any(1 < row.excess < float("inf") for row in rows):
            for varied, exact in self.references.varied(errors.hardest):
                if all(row.excess <= 1 for row in rows):
                    break
                for (name, output), baseline, reference in zip(errors.outputs.items(), varied, exact, strict=True):
                    more = Differences(self.dtype)
                    excused = baseline if family.extreme else None
                    more.add(baseline, reference, excused, fills(baseline, baseline, reference, self.dtype))
                    output.spread.take_larger(more)
                    self._note_own_error(family, name, output)
                    if not family.extreme:
                        self._usual[name].pool(more)
                rows = self._rows(errors)
        excess = max((row.excess for row in rows), default=0.0)
        if self.worst is None or excess > self.worst.excess:
            self.worst = WorstBatch(excess, errors.hardest, family)
        return rows

    def _rows(self, errors: FamilyErrors) -> list[ParityRow]:
        return [row for name, output in errors.outputs.items() for row in self._rows_of(errors.family, name, output)]

    def _rows_of(self, family: Family, name: str, output: OutputErrors) -> list[ParityRow]:
        scale, ignored = self._scale(family, name, output), smallest_error(self.dtype)
        own_error = output.spread.relative(scale, ignored) if output.spread.count else None
        # The rows may be a part of another family's: the largest error of a few numbers says little by itself.
        family_error = self._own_errors.get((family.rows_of, name), 0.0)
        shared = family_error if family_error <= self._largest_own_error else 0.0  # one family's trouble is no other's
        allowed = limit(None if own_error is None else max(own_error, shared), self.dtype, self.tolerance)
        worst = None
        if output.spread.count and not family.extreme:  # extremes are judged as a whole only
            if output.file.share is not None:
                worst = worst_position(output.file, output.spread, allowed)
            else:
                usual = self._usual[name]
                if not self._is_usual(family, name):
                    usual = Differences(self.dtype)
                    usual.pool(self._usual[name])
                    usual.pool(output.spread)
                worst = worst_index(output.file, usual, self._scales[name], self.dtype, self.tolerance)
        rows = []
        for comparison, differences in ((self.reference, output.file), (VS_TRAINED, output.gap)):
            decides = differences is output.file
            if differences.count:
                row = ParityRow(
                    comparison=comparison,
                    inputs=family.name,
                    output=name,
                    count=differences.count,
                    max_abs_error=differences.max_abs,
                    scale=scale,
                    error=differences.relative(scale, ignored),
                    own=own_error,
                    limit=allowed if decides else None,
                    spread=output.spread.max_abs if output.spread.count else None,
                    nonfinite=differences.nonfinite,
                    top1_agreement=differences.top1_agreement,
                    top1_changes=differences.changed_rows if differences.compared_rows else None,
                    extreme=family.extreme,
                    detail=output.unrun if decides else "",
                    whole_numbers=differences.share is not None,
                    **vars((decides and worst) or WorstIndex()),
                )
                rows.append(row)
        return rows


def without_ties(
    y: np.ndarray,
    reference: np.ndarray,
    exact: Candidates | None,
    baseline: Candidates | None,
    dtype: torch.dtype,
    tolerance: float,
) -> np.ndarray:
    """Return indices of largest values with those that differ by a tie replaced by the reference's."""
    # Two values are a tie if they differ by at most twice what either may be off by: the floor of the dtype, or twice
    # what PyTorch is off by in that dtype. Rounding or another kernel may decide such a choice otherwise.
    if exact is None or y.shape != reference.shape:
        return y
    values, dim = exact
    # argmax takes the dimension away
    theirs, ours = (np.expand_dims(i, dim) if i.ndim < values.ndim else i for i in (y, reference))
    inside = (theirs >= 0) & (theirs < values.shape[dim])
    chosen = np.take_along_axis(values, np.where(inside, theirs, 0), dim)
    gap = distance(chosen, np.take_along_axis(values, ours, dim))
    theirs_of = baseline[0] if baseline is not None and baseline[0].shape == values.shape else values
    computed = np.isfinite(values) & np.isfinite(theirs_of) & ~fills(theirs_of, theirs_of, values, dtype)
    spread = float(distance(theirs_of, values).max(initial=0.0, where=computed))
    allowed = 2 * max(floor(dtype, tolerance) * float(np.abs(values).max(initial=0.0, where=computed)), FACTOR * spread)
    twice = (np.diff(np.sort(theirs, dim), axis=dim) == 0).any(dim, keepdims=True)
    return np.where((inside & (gap <= allowed) & ~twice).reshape(y.shape), reference, y)
