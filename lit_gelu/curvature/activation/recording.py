"""`Recording`: what was seen of a model's activations in one stretch of training, as rows that wait, and as sums."""

from collections.abc import Iterable

import torch
from torch import Tensor

from lit_gelu.curvature.activation.site_evaluators import Parts, SiteEvaluators
from lit_gelu.curvature.activation.sums import SUMS
from lit_gelu.curvature.activation.totals import accumulation_dtype
from lit_gelu.curvature.activation.watching import Taken


class Recording:
    """Keeps rows of the inputs of activations, and turns them into sums, masks and counts by site when asked for these.

    Args:
        sites: What computes the sums; its reference is that of the moment at which they are computed.

    Attributes:
        waiting: Rows that are not summed yet, each with its site's number.

    Example:
        >>> from torch import nn
        >>> from lit_gelu.activations import registry
        >>> recording = Recording(SiteEvaluators([nn.ReLU(), nn.ReLU()], registry, None))
        >>> recording.waiting.append(Taken(1, torch.tensor([-1.0, 3.0])))
        >>> recording.sums()[:, SUMS.index("mean_output")].tolist()
        [0.0, 3.0]
    """

    def __init__(self, sites: SiteEvaluators) -> None:
        self.waiting: list[Taken] = []
        self._sites = sites
        self._sums: Parts = []
        self._alive: list[tuple[list[int], Tensor | None]] = []
        self._counts: Parts = []

    @property
    def nbytes(self) -> int:
        """The size of the rows that wait."""
        return sum(taken.rows.nbytes for taken in self.waiting)

    @property
    def device(self) -> torch.device:
        """Where the inputs were."""
        if self.waiting:
            return self.waiting[0].rows.device
        return self._sums[0][1].device if self._sums else torch.device("cpu")

    def saw_all(self) -> bool:
        """Return whether every site was called."""
        seen = {taken.number for taken in self.waiting}
        return len(seen.union(*(numbers for numbers, _ in self._sums))) == len(self._sites)

    def add(self, taken: Iterable[Taken]) -> None:
        """Sum inputs at once.

        Args:
            taken: Each with its site's number.
        """
        for numbers, rows, channels in self._sites.groups(taken):
            found, counts = self._sites.measure(numbers, rows, channels)
            self._sums.append((numbers, found.sums))
            if rows.numel() > 0:  # nothing says which channels pass nothing on where there is nothing
                self._alive.append((numbers, found.alive))
            if counts is not None:
                self._counts.append((numbers, counts))

    def reduce(self) -> None:
        """Sum what waits."""
        waiting, self.waiting = self.waiting, []
        self.add(waiting)

    def moments(self, device: torch.device | None = None) -> Tensor:
        """Return count, sum and sum of squares of what waits, which goes on waiting.

        Args:
            device: As `sums`.

        Returns:
            One row a site; finite elements only.
        """
        device = device or self.device
        parts = []
        for numbers, rows, _ in self._sites.groups(self.waiting):
            x = rows.flatten(1).to(accumulation_dtype(device))
            finite = x.abs().lt_(torch.inf)
            x = x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
            parts.append((numbers, torch.stack([finite.sum(1), x.sum(1), x.square().sum(1)], dim=1)))
        return self._sites.table(parts, 3, device)

    def sums(self, device: torch.device | None = None) -> Tensor:
        """Return the sums of all that was recorded; they can be added to those of other ranks.

        Args:
            device: Where they shall be; by default where the inputs were.

        Returns:
            One row a site, the columns of `SUMS`.
        """
        device = device or self.device
        self.reduce()
        return self._sites.table(self._sums, len(SUMS), device)

    def histograms(self, device: torch.device | None = None) -> Tensor:
        """Return the histograms of all that was recorded.

        Args:
            device: As `sums`.

        Returns:
            One row a site, as `lit_gelu.curvature.HistogramBins.count`; no columns if none were asked for.
        """
        device = device or self.device
        self.reduce()
        bins = self._sites.histogram
        return self._sites.table(self._counts, 0 if bins is None else bins.bins + 2, device)

    def alive_channels(self) -> dict[int, Tensor]:
        """Return which channels of each site the activation passes on: |f'| >= 0.01 at any element that was recorded.

        Returns:
            Masks by the site's number; only of sites called with channels, always equally many.
        """
        self.reduce()
        masks: dict[int, Tensor | None] = {}
        for numbers, rows in self._alive:
            for number, mask in zip(numbers, [None] * len(numbers) if rows is None else rows.unbind(), strict=True):
                known = masks.get(number, mask)
                if mask is None or known is None or known.shape != mask.shape:
                    masks[number] = None
                else:
                    masks[number] = mask if known is mask else known | mask
        return {number: mask for number, mask in masks.items() if mask is not None}
