"""Differences between an output and a reference, gathered over batches."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from lit_gelu.export.parity.by_position import ByPosition
from lit_gelu.export.parity.ulp import overflowed

# A fill, such as the -1e9 of a mask, is of another size than what is computed. What saturates, such as softmax, stays
# below the first number; there the rest is judged by the whole.
_FILL = 1e3
_BEYOND_THE_REST = 10.0


def fills(output: np.ndarray, own: np.ndarray | None, exact: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return where an output, PyTorch in its dtype and float64 hold one fill, which says nothing of what is computed.

    Where a fill is of the dtype, as ``torch.finfo(y.dtype).min`` is, float64 holds another one, beyond the dtype.
    """
    if exact.dtype.kind != "f" or any(y is not None and y.shape != exact.shape for y in (output, own)):
        return np.zeros(exact.shape, dtype=bool)
    y, r = output.astype(np.float64), overflowed(exact, dtype)
    agreed = np.isfinite(y) if own is None else np.isfinite(y) & (y == own.astype(np.float64))
    same = agreed & (y == torch.from_numpy(r).to(dtype).double().numpy())  # the dtype may not hold what float64 does
    rest = float(np.abs(r[np.isfinite(r) & ~same]).max(initial=0.0))
    large: np.ndarray = same & (np.abs(y) >= max(_FILL, _BEYOND_THE_REST * rest))
    return large if own is None else large | (agreed & np.isinf(r))


@dataclass
class Differences:
    """Gathers the differences between one output and its reference, batch by batch."""

    # Equal infinities differ by 0, and so do an infinity and a number too large for the file's dtype. Any other
    # difference that is not finite counts in nonfinite, except where `excused` (what PyTorch gives in that dtype) is
    # not finite either: what the dtype cannot hold is no fault of the file. Of whole numbers and truth values, such as
    # indices, the share that differs is the error: the size of the largest one says nothing of another's.

    dtype: torch.dtype = torch.float32
    count: int = 0
    max_abs: float = 0.0
    sum_abs: float = 0.0
    values: int = 0
    scale: float = 0.0
    nonfinite: int = 0
    compared_rows: int = 0
    changed_margins: list[float] = field(default_factory=list)
    share: float | None = None  # of entries that differ, in the batch that has most; None for real numbers
    by_position: ByPosition = field(default_factory=ByPosition)  # of whole numbers and truth values

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
        r = overflowed(reference.astype(np.float64), self.dtype)
        if filled is not None and output is not None and output.shape == r.shape:
            r = np.where(filled, output.astype(np.float64), r)
        computed = np.isfinite(r) if filled is None else np.isfinite(r) & ~filled
        self.scale = max(self.scale, float(np.abs(r[computed]).max(initial=0.0)))
        if output is None or output.shape != reference.shape:
            self.max_abs = float("inf")
            return
        if reference.dtype.kind in "iub":
            differs = output != reference
            self.share = max(self.share or 0.0, float(np.mean(differs)) if output.size else 0.0)
            self.by_position.add(differs)
        y = output.astype(np.float64)
        with np.errstate(invalid="ignore"):
            error = np.where(y == r, 0.0, np.abs(y - r))
        fault = ~np.isfinite(error)
        self.nonfinite += int(np.count_nonzero(fault if excused is None else fault & np.isfinite(excused)))
        finite = error[~fault]
        self.max_abs = max(self.max_abs, float(finite.max(initial=0.0)))
        self.sum_abs += float(finite.sum())
        self.values += finite.size
        if is_logits(output):
            self._add_top1(y, r)

    def _add_top1(self, y: np.ndarray, r: np.ndarray) -> None:
        """Note rows whose largest logit is another one, with the margin that the reference had."""
        rows = np.isfinite(y).all(1) & np.isfinite(r).all(1)
        y, r = y[rows], r[rows]
        self.compared_rows += len(y)
        changed = y.argmax(1) != r.argmax(1)
        best = np.sort(r[changed], axis=1)
        self.changed_margins += (best[:, -1] - best[:, -2]).tolist()

    def take_larger(self, other: "Differences") -> None:
        """Take over what is larger of differences on other inputs."""
        self.max_abs = max(self.max_abs, other.max_abs)
        if other.share is not None:
            self.share = max(self.share or 0.0, other.share)
            self.by_position.take_larger(other.by_position)

    @property
    def mean_abs(self) -> float:
        """Mean absolute difference of the finite values."""
        return self.sum_abs / self.values if self.values else 0.0

    def relative(self, scale: float, ignored: float) -> float:
        """Return the largest difference in units of a scale; 0 up to ``ignored``, infinite beyond it at scale 0.

        Of whole numbers and truth values, return the share that differs.
        """
        if self.share is not None and math.isfinite(self.max_abs):
            return self.share
        if self.max_abs <= ignored:
            return 0.0
        return self.max_abs / scale if scale > 0 else float("inf")

    @property
    def top1_agreement(self) -> float | None:
        """Share of rows with the same largest logit; ``None`` if the output is no logits."""
        return 1 - len(self.changed_margins) / self.compared_rows if self.compared_rows else None

    def top1_flips(self, allowed: float) -> int | None:
        """Count the rows that changed although their margin exceeds twice an allowed error."""
        return sum(margin > 2 * allowed for margin in self.changed_margins) if self.compared_rows else None


def is_logits(output: np.ndarray) -> bool:
    """Return whether an output looks like logits: [batch, classes], floating-point, at least two classes."""
    return output.ndim == 2 and output.shape[1] >= 2 and np.issubdtype(output.dtype, np.floating)
