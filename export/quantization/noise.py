"""How much noise quantisation adds: signal-to-quantisation-noise ratio, largest error, changed classes."""

import math
from dataclasses import dataclass, field

import numpy as np

from lit_gelu.export.parity.differences import Differences


def decibels(signal: float, noise: float) -> float:
    """Return ``10 log10(signal / noise)``; infinity without noise, minus infinity where there is noise alone."""
    if noise == 0:
        return math.inf
    if signal == 0 or not math.isfinite(noise):
        return -math.inf
    return 10 * math.log10(signal / noise)


@dataclass
class Noise:
    """Gathers what a value is off by, batch by batch."""

    # With y what it should be and e the error: SQNR = 10 log10(sum y^2 / sum e^2) decibels, 6.02 for each bit that
    # survives, 20 for an error of a tenth. What is not finite where it should be is left out of the sums and counted.

    signal: float = 0.0
    noise: float = 0.0
    entries: int = 0  # of whole numbers and truth values
    changed: int = 0  # those of them that differ
    differences: Differences = field(default_factory=Differences)

    def add(self, y: np.ndarray, reference: np.ndarray) -> None:
        """Add one batch; a value of another shape than the reference's is infinitely wrong."""
        self.differences.add(y, reference)
        if y.shape != reference.shape:
            self.noise = math.inf
            return
        wide, error = reference.astype(np.float64), y.astype(np.float64) - reference.astype(np.float64)
        finite = np.isfinite(error)
        if reference.dtype.kind in "iub":
            self.entries += reference.size
            self.changed += int(np.count_nonzero(y != reference))
        self.signal += float(np.square(wide[finite]).sum())
        self.noise += float(np.square(error[finite]).sum())

    @property
    def sqnr(self) -> float:
        """The ratio in decibels."""
        return decibels(self.signal, self.noise)

    @property
    def relative_rms(self) -> float:
        """Root of noise energy over signal energy: 0.1 at 20 dB."""
        return 0.0 if self.noise == 0 else math.sqrt(self.noise / self.signal) if self.signal else math.inf

    @property
    def top1_agreement(self) -> float | None:
        """Share of rows with the same largest logit; ``None`` if the value is no logits."""
        return self.differences.top1_agreement

    @property
    def changed_share(self) -> float | None:
        """Share of entries that differ, of whole numbers and truth values; ``None`` for real numbers."""
        return self.changed / self.entries if self.entries else None

    @property
    def difference(self) -> float:
        """One figure from 0 on: the share of rows whose largest logit is another one, or else ``relative_rms``."""
        # It bounds what becomes of an accuracy: where no more than this share of rows changes its class, no more than
        # this share can turn from right to wrong.
        if self.differences.nonfinite:
            return math.inf
        return self.relative_rms if self.top1_agreement is None else 1 - self.top1_agreement
