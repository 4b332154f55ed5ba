"""`SiteEvaluators`: what computes the sums of a model's activations, those of many sites at once."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.curvature.activation.evaluator import Evaluator
from lit_gelu.curvature.activation.histograms import HistogramBins
from lit_gelu.curvature.activation.sums import Activity, measure
from lit_gelu.curvature.activation.totals import accumulation_dtype
from lit_gelu.curvature.activation.watching import Taken

Parts = list[tuple[list[int], Tensor]]
"""Tensors with a row for each of some sites, and the numbers of these sites."""


class SiteEvaluators:
    """The activations of a model's sites; those that compute the same function are evaluated together.

    Args:
        activations: The activation of each site.
        registry: Where closed forms are looked up.
        histogram: The bins of histograms; ``None`` for none.

    Attributes:
        reference: As `ActivationRecorder.reference`.
        histogram: The bins of histograms.
        whole_examples: Of each site, whether its parameters may depend on the channel, so that it takes whole examples.

    Example:
        >>> from lit_gelu.activations import registry
        >>> sites = SiteEvaluators([nn.ReLU(), nn.ReLU(), nn.PReLU()], registry, None)
        >>> rows = torch.zeros(4, 2)
        >>> taken = [Taken(number, rows) for number in range(3)]
        >>> [numbers for numbers, *_ in sites.groups(taken)], sites.have_state
        ([[0, 1], [2]], [False, False, True])
    """

    def __init__(
        self, activations: Sequence[nn.Module], registry: ActivationRegistry, histogram: HistogramBins | None
    ) -> None:
        self.reference: Tensor | None = None
        self.histogram = histogram
        self.whole_examples = [_has_tensor_parameters(module) for module in activations]
        self._evaluators = [Evaluator(module, registry) for module in activations]
        self._shared = [_shared_name(module, registry) for module in activations]
        self._index: dict[tuple[torch.device, tuple[int, ...]], Tensor] = {}

    def __len__(self) -> int:
        return len(self._evaluators)

    @property
    def have_state(self) -> list[bool]:
        """Of each site, whether its activation has parameters or buffers, or is not registered."""
        return [name is None for name in self._shared]

    def groups(self, taken: Iterable[Taken]) -> Iterator[tuple[list[int], Tensor, int | None]]:
        """Yield inputs, those of all sites with the same activation, shape, channels, type and device at once.

        Args:
            taken: The inputs.

        Yields:
            Numbers of sites, ``[sites, ...]``, and the dimension of each input that counts channels.
        """
        groups: dict[Any, tuple[list[int], list[Tensor], int | None]] = {}
        for number, rows, channels in taken:
            shared = self._shared[number]
            own = object() if shared is None else shared
            key = (own, rows.shape, channels, rows.dtype, rows.device)
            numbers, inputs, _ = groups.setdefault(key, ([], [], channels))
            numbers.append(number)
            inputs.append(rows)
        for numbers, inputs, channels in groups.values():
            yield numbers, torch.stack(inputs) if len(inputs) > 1 else inputs[0].unsqueeze(0), channels

    def measure(self, numbers: list[int], rows: Tensor, channels: int | None) -> tuple[Activity, Tensor | None]:
        """Sum inputs of sites that share an activation.

        Args:
            numbers: The sites.
            rows: Their inputs, ``[len(numbers), ...]``.
            channels: The dimension of each input that counts channels, if there is one.

        Returns:
            The sums, and the counts of histograms, if these are wanted.
        """
        first, device = numbers[0], rows.device
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
                channel_dim=None if channels is None else channels + 1,
            )
            return found, None if self.histogram is None else self.histogram.count(rows)

    def pivot(self, device: torch.device) -> Tensor | float:
        """Return what is subtracted from each site's inputs before powers are taken.

        Args:
            device: Where it shall be.

        Returns:
            One number a site, or 0.
        """
        return 0.0 if self.reference is None else self.reference[:, 0].nan_to_num(nan=0.0).to(device)

    def table(self, parts: Parts, columns: int, device: torch.device) -> Tensor:
        """Add up what belongs to the same site.

        Args:
            parts: Rows of some sites.
            columns: How many columns they have.
            device: Where to add up.

        Returns:
            One row a site, ``[sites, columns]``.
        """
        table = torch.zeros(len(self), columns, dtype=accumulation_dtype(device), device=device)
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
