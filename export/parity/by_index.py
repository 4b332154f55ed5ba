"""Errors by index: what one scale for a whole output would hide."""

from dataclasses import dataclass, field

import numpy as np
import torch

from lit_gelu.export.parity.criterion import FACTOR, ROOT_MEAN_SQUARES, floor


@dataclass(frozen=True)
class WorstIndex:
    """The index whose error is largest in units of its limit, in the words of `lit_gelu.export.parity.rows`."""

    index: str  # such as [:, 2]
    index_error: float  # its largest absolute error
    index_limit: float  # what that may be
    index_scale: float  # its largest magnitude on all inputs that are no extremes


@dataclass
class _Along:
    """Figures for each index along one dimension, over all others."""

    error: np.ndarray = field(default_factory=lambda: np.zeros(0))
    scale: np.ndarray = field(default_factory=lambda: np.zeros(0))
    own: np.ndarray = field(default_factory=lambda: np.zeros(0))
    squares: np.ndarray = field(default_factory=lambda: np.zeros(0))
    count: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def own_error(self, dtype: torch.dtype) -> np.ndarray:
        """PyTorch's error: its largest, or some root mean squares, since the largest of a few may be small by luck."""
        mean = np.sqrt(self.squares / np.maximum(self.count, 1))
        own: np.ndarray = np.maximum(self.own, ROOT_MEAN_SQUARES[dtype] * mean)
        return own


@dataclass
class ByIndex:
    """Gathers errors and scales, batch by batch, for each index of each dimension of an output but the first."""

    # The last dimension holds what is unlike: logits of several classes, fields of a regression. In images that is the
    # second one, and a sequence's positions may differ too; so each dimension is looked at, over all others.

    _along: dict[int, _Along] = field(default_factory=dict)

    def add(self, reference: np.ndarray, output: np.ndarray | None = None, own: np.ndarray | None = None) -> None:
        """Add one batch; what the file's dtype cannot hold is infinite in the reference, which is in float64."""
        magnitude = np.where(np.isfinite(reference), np.abs(reference), 0.0)
        errors = [_errors(y, reference) for y in (output, own)]
        for dim, size in list(enumerate(reference.shape))[1:]:
            others = tuple(i for i in range(reference.ndim) if i != dim)
            found = self._along.setdefault(dim, _Along())
            found.scale = _joined(np.maximum, found.scale, magnitude.max(others, initial=0.0))
            if errors[0] is not None:
                found.error = _joined(np.maximum, found.error, errors[0].max(others, initial=0.0))
            if errors[1] is not None:
                found.own = _joined(np.maximum, found.own, errors[1].max(others, initial=0.0))
                found.squares = _joined(np.add, found.squares, np.square(errors[1]).sum(others))
                found.count = _joined(np.add, found.count, np.full(size, reference.size // max(1, size)))

    def pool(self, other: "ByIndex") -> None:
        """Take over the scales and PyTorch's errors of another family of inputs."""
        for dim, theirs in other._along.items():
            ours = self._along.setdefault(dim, _Along())
            ours.scale = _joined(np.maximum, ours.scale, theirs.scale)
            ours.own = _joined(np.maximum, ours.own, theirs.own)
            ours.squares = _joined(np.add, ours.squares, theirs.squares)
            ours.count = _joined(np.add, ours.count, theirs.count)

    def worst(self, usual: "ByIndex", dtype: torch.dtype, tolerance: float, ignored: float) -> WorstIndex | None:
        """Return the index that is nearest to its limit or beyond it; ``None`` for an output of one dimension."""
        found = []
        for dim, along in self._along.items():
            known = usual._along[dim]
            own = _joined(np.maximum, np.zeros(len(known.scale)), known.own_error(dtype))
            limits = np.maximum(np.maximum(floor(dtype, tolerance) * known.scale, FACTOR * own), ignored)[
                : len(along.error)
            ]
            if along.error.size:
                i = int(np.argmax(along.error / limits))
                place = f"[{':, ' * dim}{i}]"
                found.append(WorstIndex(place, float(along.error[i]), float(limits[i]), float(known.scale[i])))
        return max(found, key=lambda entry: entry.index_error / entry.index_limit, default=None)


def _errors(output: np.ndarray | None, reference: np.ndarray) -> np.ndarray | None:
    """Return absolute errors, 0 where one is not finite: those are counted elsewhere."""
    if output is None or output.shape != reference.shape:
        return None
    with np.errstate(invalid="ignore"):
        errors = np.abs(output.astype(np.float64) - reference)
    return np.where(np.isfinite(errors), errors, 0.0)


def _joined(operation: np.ufunc, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Join figures of batches whose lengths may differ."""
    size = max(len(a), len(b))
    joined: np.ndarray = operation(*(np.pad(x.astype(np.float64), (0, size - len(x))) for x in (a, b)))
    return joined
