"""Differences between two sets of outputs, gathered over batches."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Differences:
    """Gathers the differences between outputs and a reference, batch by batch.

    Equal infinities differ by 0, an infinity and a number too large for float32 too. Any other difference that is not
    finite counts in ``nonfinite``, except where ``excused`` (what PyTorch float32 gives) is not finite either: what
    float32 cannot hold is no fault of the file.
    """

    count: int = 0
    max_abs: float = 0.0
    sum_abs: float = 0.0
    values: int = 0
    scale: float = 0.0
    nonfinite: int = 0
    compared_rows: int = 0
    changed_margins: list[float] = field(default_factory=list)

    def add(
        self,
        outputs: Sequence[np.ndarray],
        reference: Sequence[np.ndarray],
        excused: Sequence[np.ndarray] | None = None,
    ) -> None:
        """Add one batch; outputs of another number or shape than the reference's are infinitely wrong.

        Args:
            outputs: What is judged, one array an output.
            reference: What it is judged by.
            excused: PyTorch float32's outputs; ``None``: nothing is excused.
        """
        self.count += len(reference[0]) if reference[0].ndim else 1
        if [y.shape for y in outputs] != [r.shape for r in reference]:
            self.max_abs = float("inf")
            return
        for i, (y, r) in enumerate(zip(outputs, reference, strict=True)):
            self._add_output(y.astype(np.float64), r.astype(np.float64), None if excused is None else excused[i])
        if len(outputs) == 1 and is_logits(outputs[0]):
            self._add_top1(outputs[0], reference[0])

    def _add_output(self, y: np.ndarray, r: np.ndarray, excused: np.ndarray | None) -> None:
        """Add one output."""
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = r.astype(np.float32)
            error = np.where(np.isinf(rounded) & (y == rounded), 0.0, np.abs(y - r))
        fault = ~np.isfinite(error)
        self.nonfinite += int(np.count_nonzero(fault if excused is None else fault & np.isfinite(excused)))
        finite = error[~fault]
        self.max_abs = max(self.max_abs, float(finite.max(initial=0.0)))
        self.sum_abs += float(finite.sum())
        self.values += finite.size
        self.scale = max(self.scale, float(np.abs(rounded[np.isfinite(rounded)]).max(initial=0.0)))

    def _add_top1(self, y: np.ndarray, r: np.ndarray) -> None:
        """Note rows whose largest logit is another one, with the margin that the reference had."""
        rows = np.isfinite(y).all(1) & np.isfinite(r).all(1)
        y, r = y[rows], r[rows]
        self.compared_rows += len(y)
        changed = y.argmax(1) != r.argmax(1)
        best = np.sort(r[changed].astype(np.float64), axis=1)
        self.changed_margins += (best[:, -1] - best[:, -2]).tolist()

    @property
    def mean_abs(self) -> float:
        """Mean absolute difference of the finite values."""
        return self.sum_abs / self.values if self.values else 0.0

    @property
    def top1_agreement(self) -> float | None:
        """Share of rows with the same largest logit; ``None`` if the outputs are no logits."""
        return 1 - len(self.changed_margins) / self.compared_rows if self.compared_rows else None

    @property
    def top1_flips(self) -> int | None:
        """Rows that changed although their margin exceeds twice the largest difference."""
        if not self.compared_rows:
            return None
        return sum(margin > 2 * self.max_abs for margin in self.changed_margins)


def is_logits(output: np.ndarray) -> bool:
    """Return whether an output looks like logits: [batch, classes], floating-point, at least two classes.

    Args:
        output: An output.

    Returns:
        Whether a largest logit means something.

    Example:
        >>> is_logits(np.zeros((3, 10), np.float32)), is_logits(np.zeros((3, 1), np.float32))
        (True, False)
    """
    return output.ndim == 2 and output.shape[1] >= 2 and np.issubdtype(output.dtype, np.floating)
