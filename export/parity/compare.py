"""The file against the module on families of inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from lit_gelu.export.errors import ModelInputError
from lit_gelu.export.parity.criterion import dtype_name, limit, smallest_error
from lit_gelu.export.parity.differences import Differences
from lit_gelu.export.parity.families import Batch, Family
from lit_gelu.export.parity.references import References
from lit_gelu.export.parity.rows import VS_FLOAT64, VS_PYTORCH, VS_TRAINED, ParityRow

Run = Callable[[Sequence[Tensor]], list[np.ndarray]]


@dataclass
class _Found:
    """All differences of one output on one family."""

    vs_own: Differences
    vs64: Differences
    spread: Differences
    gap: Differences


@dataclass
class Comparer:
    """Compares family by family; what is usual for an output is learned on the families that are no extremes.

    Args:
        run: Runs the file: inputs in its order and dtypes, outputs as arrays.
        references: Run the module.
        outputs: Names of the file's outputs.
        inputs: Rounds a batch to the file's dtypes.
        dtype: The file's dtype.
        tolerance: What float32 arithmetic may cost, in units of the largest output.
        vs_float64: Name of the comparison with float64.
        worst: The largest error found so far in units of its limit, and the batch that shows it.
    """

    run: Run
    references: References
    outputs: Sequence[str]
    inputs: Callable[[Batch], Batch]
    dtype: torch.dtype
    tolerance: float
    vs_float64: str = VS_FLOAT64
    _scales: dict[str, float] = field(default_factory=dict)
    _own: dict[tuple[str, str], float] = field(default_factory=dict)
    worst: tuple[float, Batch] | None = None

    def rows(self, family: Family) -> list[ParityRow]:
        """Compare on one family of inputs.

        Args:
            family: The inputs.

        Returns:
            For each output: against PyTorch in the file's dtype, against float64, and the approximation gap where it is
            asked for.
        """
        found = {name: _Found(*(Differences(self.dtype) for _ in range(4))) for name in self.outputs}
        hardest: Batch | None = None
        peak = -1.0
        for batch in family.batches:
            fed = self.inputs(batch)
            self._add(found, fed, family)
            largest = max((max(d.vs64.max_abs, d.vs_own.max_abs) for d in found.values()), default=0.0)
            if largest > peak:
                hardest, peak = fed, largest
        rows = [row for name, differences in found.items() for row in self._rows_of(name, differences, family)]
        excess = max((row.excess for row in rows), default=0.0)
        if hardest is not None and (self.worst is None or excess > self.worst[0]):
            self.worst = (excess, hardest)
        return rows

    def _add(self, found: dict[str, _Found], batch: Batch, family: Family) -> None:
        """Add one batch to the differences."""
        y = self.run(batch)
        reference = self.references.outputs(batch)
        returned = next((len(r) for r in (reference.float64, reference.own) if r is not None), len(y))
        if returned != len(y):
            raise ModelInputError(
                f"The file has {len(y)} outputs ({', '.join(self.outputs)}), the module returns {returned} tensors. "
                "Give the module that the file was exported from."
            )
        for i, differences in enumerate(found.values()):
            own = None if reference.own is None else reference.own[i]
            excused = own if family.extreme else None
            if own is not None:
                differences.vs_own.add(y[i], own, excused)
            if reference.float64 is not None:
                differences.vs64.add(y[i], reference.float64[i], excused)
                if own is not None:
                    differences.spread.add(own, reference.float64[i], excused)
            if reference.trained is not None and family.gap:
                differences.gap.add(y[i], reference.trained[i])

    def _rows_of(self, output: str, found: _Found, family: Family) -> list[ParityRow]:
        """Return the rows of one output."""
        ignored = smallest_error(self.dtype)
        scale = (found.vs64 if found.vs64.count else found.vs_own).scale
        if family.extreme:
            scale = max(scale, self._scales.get(output, 0.0))
        else:
            self._scales[output] = max(scale, self._scales.get(output, 0.0))
        own = found.spread.relative(scale, ignored) if found.spread.count else None
        if own is not None:
            self._own[family.name, output] = own
        # The rows are a part of another family's: the largest error of a few numbers says little by itself.
        whole = self._own.get((family.rows_of, output), 0.0)
        allowed = limit(None if own is None else max(own, whole), self.dtype, self.tolerance)
        spread = found.spread.max_abs if found.spread.count else None

        def row(comparison: str, differences: Differences, *, gating: bool) -> ParityRow:
            return ParityRow(
                comparison=comparison,
                inputs=family.name,
                output=output,
                count=differences.count,
                max_abs_error=differences.max_abs,
                mean_abs_error=differences.mean_abs,
                scale=scale,
                error=differences.relative(scale, ignored),
                own=own,
                limit=allowed if gating else None,
                spread=spread,
                nonfinite=differences.nonfinite,
                top1_agreement=differences.top1_agreement,
                top1_changes=len(differences.changed_margins) if differences.compared_rows else None,
                top1_flips=differences.top1_flips(allowed * scale),
                extreme=family.extreme,
            )

        rows = []
        if found.vs_own.count:  # decides only where there is nothing better
            rows.append(row(f"{VS_PYTORCH} {dtype_name(self.dtype)}", found.vs_own, gating=not found.vs64.count))
        if found.vs64.count:
            rows.append(row(self.vs_float64, found.vs64, gating=True))
        if found.gap.count:
            rows.append(row(VS_TRAINED, found.gap, gating=False))
        return rows
