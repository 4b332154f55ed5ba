"""The file against the module on families of inputs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from lit_gelu.export.errors import ModelFileError, ModelInputError
from lit_gelu.export.parity.by_index import ByIndex, WorstIndex
from lit_gelu.export.parity.criterion import dtype_name, limit, smallest_error, smallest_error_of_an_index
from lit_gelu.export.parity.differences import Differences, fills
from lit_gelu.export.parity.input_families import DATA, Batch, Family
from lit_gelu.export.parity.references import Outputs, References, failure
from lit_gelu.export.parity.rows import TF32_VS_FLOAT64, VS_FLOAT64, VS_PYTORCH, VS_TRAINED, ParityRow
from lit_gelu.export.parity.ties import without_ties
from lit_gelu.export.parity.ulp import overflowed

Run = Callable[[Sequence[Tensor]], list[np.ndarray]]


class _Found:
    """All differences of one output on one family."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.vs_own, self.vs64, self.spread, self.gap = (Differences(dtype) for _ in range(4))
        self.by_index = ByIndex()
        self.unrun = ""  # why the file does not run on a batch

    def add_own(
        self,
        own: np.ndarray | None,
        exact: np.ndarray,
        excused: np.ndarray | None,
        filled: np.ndarray,
        dtype: torch.dtype,
    ) -> None:
        """Add PyTorch's own error on one batch."""
        if own is not None:
            self.spread.add(own, exact, excused, filled)
        if exact.dtype.kind == "f":
            self.by_index.add(_computed(exact, filled, dtype), own=own)


def _computed(exact: np.ndarray, filled: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return a reference for `ByIndex`, in which what is not judged is infinite: fills, and what overflows."""
    return np.where(filled, np.inf, overflowed(exact, dtype))


def _add_failure(found: Mapping[str, _Found], reference: Outputs, why: str) -> None:
    """Add a batch on which the file does not run: it is infinitely far from all references."""
    for i, differences in enumerate(found.values()):
        differences.unrun = why
        for difference, outputs in ((differences.vs_own, reference.own), (differences.vs64, reference.exact)):
            if outputs is not None and i < len(outputs):
                difference.add(None, outputs[i])


@dataclass(frozen=True)
class Gathered:
    """What was found on one family of inputs, before it is judged."""

    family: Family
    found: Mapping[str, _Found]  # the differences by output
    hardest: Batch | None  # the batch with the largest difference; None without batches


@dataclass(frozen=True)
class WorstBatch:
    """The batch that shows the largest error in units of its limit."""

    excess: float  # that error
    batch: Batch
    family: Family  # that it is of, by whose limits it is judged


@dataclass
class Judge:
    """Compares family by family; what is usual for an output is learned on the families that are no extremes."""

    run: Run  # runs the file: inputs in its order and dtypes, outputs as arrays
    references: References
    outputs: Sequence[str]  # names of the file's outputs
    inputs: Callable[[Batch], Batch]  # rounds a batch to the file's dtypes
    dtype: torch.dtype
    tolerance: float  # what float32 arithmetic may cost, in units of the largest output
    vs_float64: str = VS_FLOAT64  # name of the comparison with float64, or with what stands in for it
    _scales: dict[str, float] = field(default_factory=dict)
    _own: dict[tuple[str, str], float] = field(default_factory=dict)
    usual: dict[str, ByIndex] = field(default_factory=dict)
    untried: list[str] = field(default_factory=list)  # which families the module does not take, and why
    refused: set[str] = field(default_factory=set)  # those families
    unrun: set[str] = field(default_factory=set)  # the families on which the file does not run
    worst: WorstBatch | None = None

    def compare(self, families: Iterable[Family]) -> list[ParityRow]:
        """Compare on families of inputs, and judge each by what all of them have shown."""
        gathered = [self.gather(family) for family in families]
        return [row for each in gathered for row in self.judge(each)]

    def gather(self, family: Family) -> Gathered:
        """Run file and module on a family of inputs; what is usual then holds it too, unless it is an extreme."""
        found = {name: _Found(self.dtype) for name in self.outputs}
        hardest: Batch | None = None
        peak = -1.0
        for batch in family.batches:
            fed = self.inputs(batch)
            reference = self._reference(fed, family)
            if reference is None:
                continue
            try:
                outputs = self.run(fed)
            except ModelFileError as error:  # such as for a window as large as the sample, and smaller inputs
                self.unrun.add(family.name)
                _add_failure(found, reference, str(error))
                continue
            self._add(found, outputs, reference, fed, family)
            largest = max((max(d.vs64.max_abs, d.vs_own.max_abs) for d in found.values()), default=0.0)
            if largest > peak:
                hardest, peak = fed, largest
        for name, differences in found.items():
            scale = self._scale(differences)
            if not family.extreme:
                self._scales[name] = max(scale, self._scales.get(name, 0.0))
                self.usual.setdefault(name, ByIndex()).pool(differences.by_index)
            if differences.spread.count:
                self._note_own(family, name, differences)
        return Gathered(family, found, hardest)

    def judge(self, gathered: Gathered) -> list[ParityRow]:
        """Judge each output on a family: against PyTorch in the file's dtype, against float64, and the gap."""
        # Before an error counts as a breach, PyTorch's own error is measured again, with weights and inputs moved by a
        # unit in the last place: a net that amplifies rounding shows that on some rows only, and not in every run.
        rows = self._rows(gathered)
        decides = self.vs_float64 != TF32_VS_FLOAT64  # rows with TF32 are reported only
        if decides and gathered.hardest is not None and any(1 < row.excess < float("inf") for row in rows):
            rows = self._rows_after_variation(gathered, gathered.hardest)
        excess = max((row.excess for row in rows), default=0.0)
        if gathered.hardest is not None and (self.worst is None or excess > self.worst.excess):
            self.worst = WorstBatch(excess, gathered.hardest, gathered.family)
        return rows

    def excess_on(self, worst: WorstBatch) -> Callable[[list[np.ndarray]], float]:
        """Return what judges other outputs for a batch as its family was judged: the largest error by its limit."""
        reference = self.references.outputs(worst.batch)

        def excess(y: list[np.ndarray]) -> float:
            found = {name: _Found(self.dtype) for name in self.outputs}
            self._add(found, y, reference, worst.batch, worst.family)
            return max((row.excess for row in self._rows(Gathered(worst.family, found, None))), default=0.0)

        return excess

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
        self, found: Mapping[str, _Found], y: list[np.ndarray], reference: Outputs, batch: Batch, family: Family
    ) -> None:
        """Add what the file gives on one batch to the differences."""
        returned = next((len(r) for r in (reference.exact, reference.own) if r is not None), len(y))
        if returned != len(y):
            raise ModelInputError(
                f"The file has {len(y)} outputs ({', '.join(self.outputs)}), the module returns {returned} tensors. "
                "Give the module that the file was exported from."
            )
        y = self._without_ties(y, reference, batch)
        for i, differences in enumerate(found.values()):
            own = None if reference.own is None else reference.own[i]
            excused = own if family.extreme else None
            exact = None if reference.exact is None else reference.exact[i]
            filled = None if exact is None else fills(y[i], own, exact, self.dtype)
            if own is not None:
                differences.vs_own.add(y[i], own, excused, filled)
            if exact is not None and filled is not None:
                differences.vs64.add(y[i], exact, excused, filled)
                differences.add_own(own, exact, excused, filled, self.dtype)
                if exact.dtype.kind == "f":
                    differences.by_index.add(_computed(exact, filled, self.dtype), output=y[i])
            if reference.trained is not None and family.gap:
                differences.gap.add(y[i], reference.trained[i])

    def _without_ties(self, y: list[np.ndarray], reference: Outputs, batch: Batch) -> list[np.ndarray]:
        """Return outputs in which indices of largest values that differ by a tie are the module's."""
        exact = reference.exact or []
        differing = [i for i, r in enumerate(exact) if r.dtype.kind in "iu" and not np.array_equal(y[i], r)]
        candidates = self.references.candidates(batch) if differing else []
        for i in differing:
            y[i] = without_ties(y[i], exact[i], *candidates[i], self.dtype, self.tolerance)
        return y

    def _rows_after_variation(self, gathered: Gathered, batch: Batch) -> list[ParityRow]:
        """Judge once PyTorch's own error is known better, as far as that decides."""
        rows = self._rows(gathered)
        for varied, exact in self.references.varied(batch):
            if all(row.excess <= 1 for row in rows):
                break
            for name, own, reference in zip(gathered.found, varied, exact, strict=True):
                more = _Found(self.dtype)
                filled = fills(own, own, reference, self.dtype)
                more.add_own(own, reference, own if gathered.family.extreme else None, filled, self.dtype)
                found = gathered.found[name]
                found.spread.take_larger(more.spread)
                self._note_own(gathered.family, name, found)
                if not gathered.family.extreme:
                    self.usual[name].pool(more.by_index)
            rows = self._rows(gathered)
        return rows

    def _note_own(self, family: Family, output: str, found: _Found) -> None:
        """Keep PyTorch's own error on a family."""
        self._own[family.name, output] = found.spread.relative(self._scale(found, family, output), self._ignored)

    @property
    def _ignored(self) -> float:
        """An absolute error that is never counted."""
        return smallest_error(self.dtype)

    def _scale(self, found: _Found, family: Family | None = None, output: str = "") -> float:
        """Return the largest magnitude of the reference; on extremes, at least what it is on other inputs."""
        scale = (found.vs64 if found.vs64.count else found.vs_own).scale
        usual = self._scales.get(output, 0.0) if family is not None and family.extreme else 0.0
        return max(scale, usual)

    def _rows(self, gathered: Gathered) -> list[ParityRow]:
        """Return the rows of a family."""
        return [row for name, found in gathered.found.items() for row in self._rows_of(name, found, gathered.family)]

    def _rows_of(self, output: str, found: _Found, family: Family) -> list[ParityRow]:
        """Return the rows of one output."""
        scale = self._scale(found, family, output)
        own = found.spread.relative(scale, self._ignored) if found.spread.count else None
        # The rows may be a part of another family's: the largest error of a few numbers says little by itself.
        whole = max(self._own.get((name, output), 0.0) for name in (family.name, family.rows_of))
        allowed = limit(None if own is None else max(own, whole), self.dtype, self.tolerance)
        spread = found.spread.max_abs if found.spread.count else None

        def row(comparison: str, differences: Differences, *, gating: bool) -> ParityRow:
            decides = gating and differences is found.vs64
            worst = self._worst_index(output, found, family, allowed) if decides else None
            return ParityRow(
                comparison=comparison,
                inputs=family.name,
                output=output,
                count=differences.count,
                max_abs_error=differences.max_abs,
                mean_abs_error=differences.mean_abs,
                scale=scale,
                error=differences.relative(scale, self._ignored),
                own=own,
                limit=allowed if gating else None,
                spread=spread,
                nonfinite=differences.nonfinite,
                top1_agreement=differences.top1_agreement,
                top1_changes=len(differences.changed_margins) if differences.compared_rows else None,
                top1_flips=differences.top1_flips(allowed * scale),
                extreme=family.extreme,
                detail=found.unrun if gating else "",
                whole_numbers=differences.share is not None,
                **({} if worst is None else vars(worst)),
            )

        rows = []
        if found.vs_own.count:  # decides only where there is nothing better
            rows.append(row(f"{VS_PYTORCH} {dtype_name(self.dtype)}", found.vs_own, gating=not found.vs64.count))
        if found.vs64.count:
            rows.append(row(self.vs_float64, found.vs64, gating=True))
        if found.gap.count:
            rows.append(row(VS_TRAINED, found.gap, gating=False))
        return rows

    def _ignored_at_an_index(self, output: str) -> float:
        """An absolute error that any index of an output may have."""
        return smallest_error_of_an_index(self._scales.get(output, 0.0), self.dtype)

    def _worst_index(self, output: str, found: _Found, family: Family, allowed: float) -> WorstIndex | None:
        """Return the index that is nearest to its limit; extremes are judged as a whole only."""
        if family.extreme or output not in self.usual:
            return None
        if found.vs64.share is not None:
            return found.vs64.by_position.worst(found.spread.by_position, allowed)
        ignored = self._ignored_at_an_index(output)
        return found.by_index.worst(self.usual[output], self.dtype, self.tolerance, ignored)
