"""`SiteSums`: what was recorded of a model's activations, as sums, masks and counts by site."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.curvature.activation.evaluator import Evaluator
from lit_gelu.curvature.activation.histograms import HistogramBins
from lit_gelu.curvature.activation.rows import channel_dim
from lit_gelu.curvature.activation.sums import SUMS, measure
from lit_gelu.curvature.activation.totals import accumulation_dtype

Parts = list[tuple[list[int], Tensor]]
"""Tensors with a row for each of some sites, and the numbers of these sites."""


class SiteSums:
    """Adds up inputs of activations; those of all sites that share an activation and a shape are computed together.

    Args:
        activations: The activation of each site.
        registry: Where closed forms are looked up.
        histogram: The bins of histograms; ``None`` for none.

    Attributes:
        reference: As `ActivationRecorder.reference`.
        whole_examples: Of each site, whether its parameters may depend on the channel, so that it takes whole examples.

    Example:
        >>> from lit_gelu.activations import registry
        >>> sums = SiteSums([nn.ReLU(), nn.ReLU()], registry, None)
        >>> sums.add([(1, torch.tensor([-1.0, 3.0]))])
        >>> sums.table(torch.device("cpu"))[:, SUMS.index("mean_output")].tolist()
        [0.0, 3.0]
    """

    def __init__(
        self, activations: Sequence[nn.Module], registry: ActivationRegistry, histogram: HistogramBins | None
    ) -> None:
        self.reference: Tensor | None = None
        self.histogram = histogram
        self.whole_examples = [_has_tensor_parameters(module) for module in activations]
        self._evaluators = [Evaluator(module, registry) for module in activations]
        self._shared = [_shared_name(module, registry) for module in activations]
        self._sums: Parts = []
        self._alive: list[tuple[list[int], Tensor | None]] = []
        self._counts: Parts = []
        self._index: dict[tuple[torch.device, tuple[int, ...]], Tensor] = {}

    def clear(self) -> None:
        """Forget everything but the reference."""
        self._sums.clear()
        self._alive.clear()
        self._counts.clear()

    def has_state(self, number: int) -> bool:
        """Return whether a site's activation has parameters or buffers, or is not registered.

        Args:
            number: The site's number.

        Returns:
            Whether it has.
        """
        return self._shared[number] is None

    def add(self, taken: Iterable[tuple[int, Tensor]]) -> None:
        """Add inputs.

        Args:
            taken: Each with its site's number.
        """
        for numbers, rows in self._groups(taken):
            self._add(numbers, rows)

    def moments(self, taken: Iterable[tuple[int, Tensor]], device: torch.device) -> Tensor:
        """Return count, sum and sum of squares of inputs, without adding them.

        Args:
            taken: As `add`.
            device: Where they shall be.

        Returns:
            One row a site; finite elements only.
        """
        parts = []
        for numbers, rows in self._groups(taken):
            x = rows.flatten(1).to(accumulation_dtype(device))
            finite = x.abs().lt_(torch.inf)
            x = x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
            parts.append((numbers, torch.stack([finite.sum(1), x.sum(1), x.square().sum(1)], dim=1)))
        return self._by_site(parts, 3, device)

    def table(self, device: torch.device) -> Tensor:
        """Return the sums.

        Args:
            device: Where they shall be.

        Returns:
            One row a site, the columns of `SUMS`.
        """
        return self._by_site(self._sums, len(SUMS), device)

    def histograms(self, device: torch.device) -> Tensor:
        """Return the histograms.

        Args:
            device: Where they shall be.

        Returns:
            One row a site; no columns if none were asked for.
        """
        return self._by_site(self._counts, 0 if self.histogram is None else self.histogram.bins + 2, device)

    def alive_channels(self) -> dict[int, Tensor]:
        """Return which channels each site's activation passes on.

        Returns:
            Masks by number; only of sites called with channels, always equally many.
        """
        masks: dict[int, Tensor | None] = {}
        for numbers, rows in self._alive:
            for number, mask in zip(numbers, [None] * len(numbers) if rows is None else rows.unbind(), strict=True):
                known = masks.get(number, mask)
                if mask is None or known is None or known.shape != mask.shape:
                    masks[number] = None
                else:
                    masks[number] = mask if known is mask else known | mask
        return {number: mask for number, mask in masks.items() if mask is not None}

    def pivot(self, device: torch.device) -> Tensor | float:
        """Return what is subtracted from each site's inputs before powers are taken.

        Args:
            device: Where it shall be.

        Returns:
            One number a site, or 0.
        """
        return 0.0 if self.reference is None else self.reference[:, 0].nan_to_num(nan=0.0).to(device)

    def device(self) -> torch.device:
        """Return where the inputs were."""
        return self._sums[0][1].device if self._sums else torch.device("cpu")

    def _groups(self, taken: Iterable[tuple[int, Tensor]]) -> Iterator[tuple[list[int], Tensor]]:
        """Yield what was taken, that of all sites with the same activation, shape, type and device at once."""
        groups: dict[Any, tuple[list[int], list[Tensor]]] = {}
        for number, rows in taken:
            shared = self._shared[number]
            own = object() if shared is None else shared
            numbers, inputs = groups.setdefault((own, rows.shape, rows.dtype, rows.device), ([], []))
            numbers.append(number)
            inputs.append(rows)
        for numbers, inputs in groups.values():
            yield numbers, torch.stack(inputs) if len(inputs) > 1 else inputs[0].unsqueeze(0)

    def _add(self, numbers: list[int], rows: Tensor) -> None:
        """Add inputs ``[len(numbers), ...]`` of sites that share an activation."""
        first, device = numbers[0], rows.device
        dim = channel_dim(rows[0], whole_examples=self.whole_examples[first])
        pivot, scale = self.pivot(device), None
        if self.reference is not None and isinstance(pivot, Tensor):
            index = self._numbers(numbers, device)
            pivot, scale = pivot[index], self.reference[:, 1].to(device)[index]
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            found = measure(
                self._evaluators[first],
                rows,
                pivot=pivot,
                scale=scale,
                channel_dim=None if dim is None else dim + 1,
            )
            if self.histogram is not None:
                self._counts.append((numbers, self.histogram.count(rows)))
        self._sums.append((numbers, found.sums))
        self._alive.append((numbers, found.alive))

    def _by_site(self, parts: Parts, columns: int, device: torch.device) -> Tensor:
        table = torch.zeros(len(self._evaluators), columns, dtype=accumulation_dtype(device), device=device)
        for numbers, rows in parts:
            table.index_add_(0, self._numbers(numbers, device), rows.to(table))
        return table

    def _numbers(self, numbers: list[int], device: torch.device) -> Tensor:
        """Return site numbers as a tensor on a device, where it is kept: making one there would wait for the device."""
        key = (device, tuple(numbers))
        if key not in self._index:
            self._index[key] = torch.tensor(numbers, device=device)
        return self._index[key]


def _shared_name(module: nn.Module, registry: ActivationRegistry) -> str | None:
    """Return a name that modules computing the same function share; ``None`` if this one has state of its own."""
    spec = registry.spec_of(module)
    own_state = next(module.parameters(), None) is not None or next(module.buffers(), None) is not None
    return None if spec.opaque or own_state else str(spec)


def _has_tensor_parameters(module: nn.Module) -> bool:
    """Return whether a module's parameters may depend on the channel, so that it takes whole examples only."""
    return any(tensor.numel() > 1 for tensor in (*module.parameters(), *module.buffers()))
