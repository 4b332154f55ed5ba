"""Differences between an output and its reference, gathered over batches: as a whole, by index and by position."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from lit_gelu.export.parity.criterion import FACTOR, distance, explained_by_chance, limits_of_indices, overflowed


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
        own, scale, squares, count = usual.along[dim]
        limits = limits_of_indices(scale, own, squares / np.maximum(count, 1), largest, dtype, tolerance)
        if errors.size:
            i = int(np.argmax(errors / limits[: len(errors)]))
            candidates.append(WorstIndex(f"[{':, ' * dim}{i}]", float(errors[i]), float(limits[i]), float(scale[i])))
    return max(candidates, key=lambda worst: worst.index_error / worst.index_limit, default=None)


def worst_position(differences: Differences, own: Differences, share: float) -> WorstIndex | None:
    """Return the position of whole numbers that is nearest to its limit or beyond it; ``None`` if none differs."""
    # A share of all entries has a floor, since rounding decides now and then on which side of a threshold a number
    # falls. One position of a large mask could be wrong in every row below that floor. Rounding spreads, a fault stays.
    candidates = []
    for shape, (differing, rows) in differences.positions.items():
        if not differing.any():
            continue
        theirs = own.positions[shape][0] if shape in own.positions else np.zeros(shape)
        limits = explained_by_chance(rows, differing.size, share) + FACTOR * theirs
        place = np.unravel_index(int(np.argmax(differing / limits)), shape)
        text = f"[:, {', '.join(map(str, place))}]"
        candidates.append(WorstIndex(text, float(differing[place]), float(limits[place]), rows))
    return max(candidates, key=lambda worst: worst.index_error / worst.index_limit, default=None)
