"""Whole numbers and truth values by position: what a share of all entries would hide."""

import math
from dataclasses import dataclass, field

import numpy as np

from lit_gelu.export.parity.by_index import WorstIndex
from lit_gelu.export.parity.criterion import FACTOR

_CHANCE = 1e-3  # that some position of an output differs in more rows than it may, if entries differ independently


@dataclass
class _Count:
    """How many rows of one shape there are, and in how many of them each position differs."""

    differing: np.ndarray
    rows: int


@dataclass
class ByPosition:
    """Counts the rows in which each position of an output differs, batch by batch."""

    # A share of all entries has a floor, since rounding decides now and then on which side of a threshold a number
    # falls. One position of a large mask could be wrong in every row below that floor. Rounding spreads, a fault stays.

    _counts: dict[tuple[int, ...], _Count] = field(default_factory=dict)  # by the shape of a row

    def add(self, differs: np.ndarray) -> None:
        """Add one batch, ``[rows, ...]``; numbers and lists of numbers have one position, and the share says all."""
        if differs.ndim > 1:
            count = self._counts.setdefault(differs.shape[1:], _Count(np.zeros(differs.shape[1:]), 0))
            count.differing += differs.sum(0)
            count.rows += len(differs)

    def take_larger(self, other: "ByPosition") -> None:
        """Take over where positions differ in a larger share of other rows."""
        for shape, count in self._counts.items():
            more = other._counts.get(shape)
            if more is not None and more.rows:
                np.maximum(count.differing, more.differing * (count.rows / more.rows), out=count.differing)

    def worst(self, own: "ByPosition", share: float) -> WorstIndex | None:
        """Return the position that is nearest to its limit or beyond it; ``None`` if none differs."""
        found = []
        for shape, count in self._counts.items():
            if not count.differing.any():
                continue
            known = own._counts.get(shape)
            limits = explained_by_chance(count.rows, count.differing.size, share) + FACTOR * (
                np.zeros(shape) if known is None else known.differing
            )
            place = np.unravel_index(int(np.argmax(count.differing / limits)), shape)
            text = ", ".join(map(str, place))
            found.append(WorstIndex(f"[:, {text}]", float(count.differing[place]), float(limits[place]), count.rows))
        return max(found, key=lambda entry: entry.index_error / entry.index_limit, default=None)


def explained_by_chance(rows: int, positions: int, share: float) -> int:
    """Return in how many rows the worst of some positions may differ, one at least, where a share of entries does."""
    # P(X >= k) <= C(rows, k) share^k for a binomial X, and the sum over all positions bounds that of the worst one.
    if share <= 0:
        return 1
    k = np.arange(1, rows + 1)
    bound = math.log(max(1, positions)) + np.cumsum(np.log((rows - k + 1) / k * share))
    unlikely = np.flatnonzero(bound < math.log(_CHANCE))
    return max(1, int(unlikely[0])) if unlikely.size else max(1, rows)
