"""The file against the module, on families of inputs: each output as a whole and by index."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from lit_gelu.errors import ModelFileError, ModelInputError
from lit_gelu.export.copying import relative_difference
from lit_gelu.export.parity.criterion import (
    FACTOR,
    UNIT_ROUNDOFF,
    distance,
    dtype_name,
    explained_by_chance,
    fills,
    limit,
    limits_of_indices,
    overflowed,
    smallest_error,
)
from lit_gelu.export.parity.input_families import DATA, SAMPLE, Batch, Family
from lit_gelu.export.parity.report import VS_FLOAT64, VS_PYTORCH, VS_TRAINED, ParityRow
from lit_gelu.export.parity.runs import Outputs, References, failure, without_ties


@dataclass(frozen=True)
class WorstIndex:
    """The index whose error is largest in units of its limit, in the words of `ParityRow`."""

    index: str  # such as [:, 2]
    index_error: float
    index_limit: float
    index_scale: float


@dataclass
class Differences:
    """Gathers the differences between one output and its reference, batch by batch."""

    # Equal infinities differ by 0, and so do an infinity and a number too large for the file's dtype. Any other
    # difference that is not finite counts in nonfinite, except where `excused` (what PyTorch gives in that dtype) is
    # not finite either: what the dtype cannot hold is no fault of the file. Of whole numbers and truth values, such as
    # indices, the share that differs is the error: the size of the largest one says nothing of another's.

    dtype: torch.dtype = torch.float32
    by_index: bool = False  # whether errors of real numbers are kept for each index too
    count: int = 0
    max_abs: float = 0.0
    scale: float = 0.0
    nonfinite: int = 0
    compared_rows: int = 0
    changed_rows: int = 0  # of them, those whose largest logit is another one
    share: float | None = None  # of entries that differ, in the batch that has most; None for real numbers
    # For each dimension but the first an array [4, size]: largest error, largest magnitude, sum of squared errors and
    # their count, over all other dimensions. The last dimension holds what is unlike: logits of several classes, fields
    # of a regression. In images that is the second one, and a sequence's positions may differ too.
    along: dict[int, np.ndarray] = field(default_factory=dict)
    # Of whole numbers and truth values: by the shape of a row, in how many rows each position differs, and of how many.
    positions: dict[tuple[int, ...], tuple[np.ndarray, int]] = field(default_factory=dict)

    def add(
        self,
        output: np.ndarray | None,
        reference: np.ndarray,
        excused: np.ndarray | None = None,
        filled: np.ndarray | None = None,
    ) -> None:
        """Add one batch, of which what is ``filled`` is right and has no scale.

        No output, or one of another shape than the reference's, is infinitely wrong.
        """
        self.count += len(reference) if reference.ndim else 1
        r = overflowed(reference, self.dtype)
        fits = output is not None and output.shape == reference.shape
        if filled is not None and output is not None and fits:
            r = np.where(filled, output.astype(np.float64), r)
        computed = np.isfinite(r) if filled is None else np.isfinite(r) & ~filled
        magnitude = np.where(computed, np.abs(r), 0.0)
        self.scale = max(self.scale, float(magnitude.max(initial=0.0)))
        if output is None or not fits:
            self.max_abs = math.inf
            return
        y = output.astype(np.float64)
        error = distance(y, r)
        fault = ~np.isfinite(error)
        self.nonfinite += int(np.count_nonzero(fault if excused is None else fault & np.isfinite(excused)))
        error = np.where(fault, 0.0, error)
        self.max_abs = max(self.max_abs, float(error.max(initial=0.0)))
        if reference.dtype.kind in "iub":
            self._add_positions(output != reference)
        elif self.by_index:
            for dim, size in list(enumerate(r.shape))[1:]:
                others = tuple(i for i in range(r.ndim) if i != dim)
                figures = [
                    error.max(others, initial=0.0),
                    magnitude.max(others, initial=0.0),
                    np.square(error).sum(others),
                    np.full(size, r.size // max(1, size)),
                ]
                self._join(dim, np.stack(figures))
        if output.ndim == 2 and output.shape[1] >= 2 and np.issubdtype(output.dtype, np.floating):  # as logits are
            rows = np.isfinite(y).all(1) & np.isfinite(r).all(1)
            self.compared_rows += int(np.count_nonzero(rows))
            self.changed_rows += int(np.count_nonzero(y[rows].argmax(1) != r[rows].argmax(1)))

    def _add_positions(self, differs: np.ndarray) -> None:
        self.share = max(self.share or 0.0, float(np.mean(differs)) if differs.size else 0.0)
        if differs.ndim > 1:  # numbers and lists of numbers have one position, and the share says all
            before, rows = self.positions.get(differs.shape[1:], (np.zeros(()), 0))
            self.positions[differs.shape[1:]] = (before + differs.sum(0, dtype=np.float64), rows + len(differs))

    def _join(self, dim: int, figures: np.ndarray) -> None:
        """Join figures of an index; sizes may be others in another batch."""
        before = self.along.get(dim, np.zeros((4, 0)))
        size = max(before.shape[1], figures.shape[1])
        a, b = (np.pad(part, ((0, 0), (0, size - part.shape[1]))) for part in (before, figures))
        self.along[dim] = np.vstack([np.maximum(a[:2], b[:2]), a[2:] + b[2:]])

    def pool(self, other: "Differences") -> None:
        """Take over what another family of inputs shows of each index."""
        for dim, figures in other.along.items():
            self._join(dim, figures)

    def take_larger(self, other: "Differences") -> None:
        """Take over what is larger of differences on other inputs."""
        self.max_abs = max(self.max_abs, other.max_abs)
        if other.share is not None:
            self.share = max(self.share or 0.0, other.share)
        for shape, (differing, rows) in self.positions.items():
            more, of = other.positions.get(shape, (differing, rows))
            self.positions[shape] = (np.maximum(differing, more * (rows / of)) if of else differing, rows)

    def relative(self, scale: float, ignored: float) -> float:
        """Return the largest difference in units of a scale; 0 up to ``ignored``, infinite beyond it at scale 0.

        Of whole numbers and truth values, return the share that differs.
        """
        if self.share is not None and math.isfinite(self.max_abs):
            return self.share
        if self.max_abs <= ignored:
            return 0.0
        return self.max_abs / scale if scale > 0 else math.inf

    @property
    def top1_agreement(self) -> float | None:
        """Share of rows with the same largest logit; ``None`` if the output is no logits."""
        return 1 - self.changed_rows / self.compared_rows if self.compared_rows else None

    @property
    def top1_changes(self) -> int | None:
        """Number of rows with another largest logit; ``None`` if the output is no logits."""
        return self.changed_rows if self.compared_rows else None


def worst_index(
    differences: Differences, usual: Differences, largest: float, dtype: torch.dtype, tolerance: float
) -> WorstIndex | None:
    """Return the index that is nearest to its limit or beyond it; ``None`` for an output of one dimension.

    Args:
        differences: Of the file from float64, on one family of inputs.
        usual: PyTorch's own from float64, on all families that are no extremes.
        largest: The output's largest magnitude on these.
        dtype: The file's.
        tolerance: What float32 arithmetic may cost.
    """
    candidates = []
    for dim, (errors, *_) in differences.along.items():
        own_errors, scale, squares, count = usual.along[dim]
        limits = limits_of_indices(scale, own_errors, squares / np.maximum(count, 1), largest, dtype, tolerance)
        if errors.size:
            i = int(np.argmax(errors / limits[: len(errors)]))
            candidates.append(WorstIndex(f"[{':, ' * dim}{i}]", float(errors[i]), float(limits[i]), float(scale[i])))
    return max(candidates, key=lambda worst: worst.index_error / worst.index_limit, default=None)


def worst_position(differences: Differences, spread: Differences, share: float) -> WorstIndex | None:
    """Return the position of whole numbers that is nearest to its limit or beyond it; ``None`` if none differs."""
    # A share of all entries has a floor, since rounding decides now and then on which side of a threshold a number
    # falls. One position of a large mask could be wrong in every row below that floor. Rounding spreads, a fault stays.
    candidates = []
    for shape, (differing, rows) in differences.positions.items():
        if not differing.any():
            continue
        theirs = spread.positions[shape][0] if shape in spread.positions else np.zeros(shape)
        limits = explained_by_chance(rows, differing.size, share) + FACTOR * theirs
        place = np.unravel_index(int(np.argmax(differing / limits)), shape)
        text = f"[:, {', '.join(map(str, place))}]"
        candidates.append(WorstIndex(text, float(differing[place]), float(limits[place]), rows))
    return max(candidates, key=lambda worst: worst.index_error / worst.index_limit, default=None)


Run = Callable[[Sequence[Tensor]], list[np.ndarray]]
# What PyTorch is off by, in units of the largest output, is rounding up to here; above, float32 and float64 are two
# functions of that input. In 16 bit, so many unit roundoffs.
_ROUNDING, _ROUNDINGS = 1e-2, 16


class OutputErrors:
    """All differences of one output on one family."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.vs_baseline, self.gap = Differences(dtype), Differences(dtype)
        self.vs64, self.spread = Differences(dtype, by_index=True), Differences(dtype, by_index=True)
        self.unrun = ""  # why the file does not run on a batch

    @property
    def scale(self) -> float:
        """The largest magnitude of the reference."""
        return (self.vs64 if self.vs64.count else self.vs_baseline).scale


@dataclass(frozen=True)
class FamilyErrors:
    """What was found on one family of inputs, before it is judged."""

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
    vs_float64: str = VS_FLOAT64  # name of the comparison with float64, or with what stands in for it
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
        gathered = [self._gather(family) for family in families]
        rows = [row for errors in gathered for row in self._judge(errors)]
        threshold = FACTOR * self._largest_own_error
        wide = {row.inputs: row for row in rows if (row.limit or 0.0) > threshold and not row.extreme}
        self.untried += [
            f"{name}: an output may be off by {row.limit:.2g} of its largest value, twice what PyTorch itself is."
            for name, row in wide.items()
        ]
        return rows

    def excess_on(self, worst: WorstBatch) -> Callable[[list[np.ndarray]], float]:
        """Return what judges other outputs for a batch as its family was judged: the largest error by its limit."""
        reference = self.references.outputs(worst.batch)

        def excess(y: list[np.ndarray]) -> float:
            errors = {name: OutputErrors(self.dtype) for name in self.outputs}
            self._add(errors, y, reference, worst.batch, worst.family)
            return max((row.excess for row in self._rows(FamilyErrors(worst.family, errors, None))), default=0.0)

        return excess

    def _gather(self, family: Family) -> FamilyErrors:
        """Run file and module on a family of inputs; what is usual then holds it too, unless it is an extreme."""
        errors = {name: OutputErrors(self.dtype) for name in self.outputs}
        hardest: Batch | None = None
        peak = -1.0
        for batch in family.batches:
            fed = self.inputs(batch)
            reference = self._reference(fed, family)
            if reference is None:
                continue
            self._note_rounding(batch, fed, reference)
            fed, reference = self._of_one_meaning(fed, reference, family)
            try:
                y = self.run(fed)
            except ModelFileError as error:  # such as for a window as large as the sample, and smaller inputs
                self._note_unrun(family, errors, reference, str(error))
                continue
            self._add(errors, y, reference, fed, family)
            largest = max((max(e.vs64.max_abs, e.vs_baseline.max_abs) for e in errors.values()), default=0.0)
            if largest > peak:
                hardest, peak = fed, largest
        for name, output in errors.items():
            if not family.extreme:
                self._scales[name] = max(output.scale, self._scales.get(name, 0.0))
            self._note_own_error(family, name, output)
            usual = self._usual.setdefault(name, Differences(self.dtype))
            if self._is_usual(family, name):  # where rounding explains the errors by index
                usual.pool(output.spread)
        return FamilyErrors(family, errors, hardest)

    def _note_unrun(self, family: Family, errors: dict[str, OutputErrors], reference: Outputs, reason: str) -> None:
        """Note that the file does not run on a batch, which is infinitely far from all references."""
        self.unrun.add(family.name)
        for i, output in enumerate(errors.values()):
            output.unrun = reason
            for difference, values in ((output.vs_baseline, reference.baseline), (output.vs64, reference.exact)):
                if values is not None and i < len(values):
                    difference.add(None, values[i])

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
        largest = 0.0
        for y, exact in zip(baseline, reference.exact, strict=True):
            if y.ndim and y.shape == exact.shape and len(y) == len(bad) and y.dtype.kind == "f":
                scale = float(np.abs(exact[np.isfinite(exact)]).max(initial=0.0))
                off = np.nan_to_num(distance(y, exact), nan=0.0).reshape(len(y), -1).max(1, initial=0.0)
                largest = max(largest, float(off.max(initial=0.0)) / (scale or 1.0))
                bad |= off > _ROUNDING * scale
        if not bad.any() or bad.all() or not any(self.references.call.batched):  # of a fixed batch no row can go
            return batch, reference
        self.untried.append(
            f"{family.name}: {bad.sum()} of {len(bad)} rows were left out, on which PyTorch in float32 and in float64 "
            f"differ by up to {largest:.2g} of the largest output, as under a mask that keeps nothing."
        )
        kept = self.references.call.selected(batch, torch.from_numpy(np.flatnonzero(~bad)))
        return kept, self.references.outputs(kept)

    def _note_rounding(self, batch: Batch, fed: Batch, reference: Outputs) -> None:
        wide = any(t.dtype == torch.float64 and f.dtype == torch.float32 for t, f in zip(batch, fed, strict=True))
        if wide and self.references.exact is not None and reference.exact is not None:
            exact = self.references.run(self.references.exact, batch, self.references.exact_dtype)
            self.rounding = max(self.rounding, *map(relative_difference, reference.exact, exact))

    def _reference(self, batch: Batch, family: Family) -> Outputs | None:
        """Run the module; note that it does not take what is no data of the user's, such as a batch of one row."""
        try:
            return self.references.outputs(batch)
        except Exception as error:
            if family.name == DATA:
                shapes = ", ".join(str(list(tensor.shape)) for tensor in batch)
                raise ModelInputError(f"The module does not take a batch of the data ({shapes}): {error}") from error
            self.refused.add(family.name)
            self.untried.append(f"{family.name} was not tried: {failure(error)}.")
            return None

    def _add(
        self, errors: dict[str, OutputErrors], y: list[np.ndarray], reference: Outputs, batch: Batch, family: Family
    ) -> None:
        if len(reference.baseline) != len(y):
            raise ModelInputError(
                f"The file has {len(y)} outputs ({', '.join(self.outputs)}), the module returns "
                f"{len(reference.baseline)} tensors. Give the module that the file was exported from."
            )
        y = self._without_ties(y, reference, batch)
        for i, output in enumerate(errors.values()):
            baseline = reference.baseline[i]
            excused = baseline if family.extreme else None
            if reference.exact is None:
                output.vs_baseline.add(y[i], baseline, excused)
            else:
                exact = reference.exact[i]
                filled = fills(y[i], baseline, exact, self.dtype)
                output.vs_baseline.add(y[i], baseline, excused, filled)
                output.vs64.add(y[i], exact, excused, filled)
                output.spread.add(baseline, exact, excused, filled)
            if reference.trained is not None and family.gap:
                output.gap.add(y[i], reference.trained[i])

    def _without_ties(self, y: list[np.ndarray], reference: Outputs, batch: Batch) -> list[np.ndarray]:
        """Return outputs in which indices of largest values that differ by a tie are the module's."""
        exact = reference.exact or []
        differing = [i for i, r in enumerate(exact) if r.dtype.kind in "iu" and not np.array_equal(y[i], r)]
        candidates = self.references.candidates(batch) if differing else []
        for i in differing:
            y[i] = without_ties(y[i], exact[i], *candidates[i], self.dtype, self.tolerance)
        return y

    def _note_own_error(self, family: Family, name: str, output: OutputErrors) -> None:
        if output.spread.count:
            scale = self._scale(family, name, output)
            self._own_errors[family.name, name] = output.spread.relative(scale, smallest_error(self.dtype))

    def _scale(self, family: Family, name: str, output: OutputErrors) -> float:
        """Return the largest magnitude of the reference; on extremes, at least what it is on other inputs."""
        return max(output.scale, self._scales.get(name, 0.0) if family.extreme else 0.0)

    def _judge(self, gathered: FamilyErrors) -> list[ParityRow]:
        """Judge each output on a family: against PyTorch in the file's dtype, against float64, and the gap."""
        # Before an error counts as a breach, PyTorch's own error is measured again, with weights and inputs moved by a
        # unit in the last place: a net that amplifies rounding shows that on some rows only, and not in every run.
        rows, family = self._rows(gathered), gathered.family
        if gathered.hardest is None:
            return rows
        if any(1 < row.excess < float("inf") for row in rows):
            for varied, exact in self.references.varied(gathered.hardest):
                if all(row.excess <= 1 for row in rows):
                    break
                for (name, output), baseline, reference in zip(gathered.outputs.items(), varied, exact, strict=True):
                    more = Differences(self.dtype, by_index=True)
                    excused = baseline if family.extreme else None
                    more.add(baseline, reference, excused, fills(baseline, baseline, reference, self.dtype))
                    output.spread.take_larger(more)
                    self._note_own_error(family, name, output)
                    if not family.extreme:
                        self._usual[name].pool(more)
                rows = self._rows(gathered)
        excess = max((row.excess for row in rows), default=0.0)
        if self.worst is None or excess > self.worst.excess:
            self.worst = WorstBatch(excess, gathered.hardest, family)
        return rows

    def _rows(self, gathered: FamilyErrors) -> list[ParityRow]:
        family = gathered.family
        return [row for name, output in gathered.outputs.items() for row in self._rows_of(name, output, family)]

    def _rows_of(self, name: str, output: OutputErrors, family: Family) -> list[ParityRow]:
        scale, ignored = self._scale(family, name, output), smallest_error(self.dtype)
        spread = output.spread if output.spread.count else None
        own_error = None if spread is None else spread.relative(scale, ignored)
        # The rows may be a part of another family's: the largest error of a few numbers says little by itself.
        family_error = self._own_errors.get((family.rows_of, name), 0.0)
        shared = family_error if family_error <= self._largest_own_error else 0.0  # one family's trouble is no other's
        allowed = limit(None if own_error is None else max(own_error, shared), self.dtype, self.tolerance)

        def row(comparison: str, differences: Differences, *, gating: bool) -> ParityRow:
            worst = None
            if gating and differences is output.vs64 and not family.extreme:  # extremes are judged as a whole only
                if differences.share is not None:
                    worst = worst_position(differences, output.spread, allowed)
                elif name in self._usual:
                    usual = self._usual[name]
                    if not self._is_usual(family, name):
                        usual = Differences(self.dtype)
                        usual.pool(self._usual[name])
                        usual.pool(output.spread)
                    worst = worst_index(differences, usual, self._scales[name], self.dtype, self.tolerance)
            return ParityRow(
                comparison=comparison,
                inputs=family.name,
                output=name,
                count=differences.count,
                max_abs_error=differences.max_abs,
                scale=scale,
                error=differences.relative(scale, ignored),
                own=own_error,
                limit=allowed if gating else None,
                spread=None if spread is None else spread.max_abs,
                nonfinite=differences.nonfinite,
                top1_agreement=differences.top1_agreement,
                top1_changes=differences.top1_changes,
                extreme=family.extreme,
                detail=output.unrun if gating else "",
                whole_numbers=differences.share is not None,
                **({} if worst is None else vars(worst)),
            )

        rows = []
        if output.vs_baseline.count:  # decides only where there is nothing better
            own_name = f"{VS_PYTORCH} {dtype_name(self.dtype)}"
            rows.append(row(own_name, output.vs_baseline, gating=not output.vs64.count))
        if output.vs64.count:
            rows.append(row(self.vs_float64, output.vs64, gating=True))
        if output.gap.count:
            rows.append(row(VS_TRAINED, output.gap, gating=False))
        return rows
