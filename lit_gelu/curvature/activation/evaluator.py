"""`ActivationEvaluator`: turns what was recorded of a model's activations into sums, those of many sites at once."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.curvature.activation.formulas import formulas_of, has_own_state
from lit_gelu.curvature.activation.statistics import SUMS, accumulation_dtype, measure

Parts = list[tuple[list[int], Tensor]]
"""Tensors with a row for each of some sites, and the numbers of these sites."""


class Taken(NamedTuple):
    """Rows of an input."""

    number: int  # of the site
    rows: Tensor
    # Which dimension of them counts the channels; ``None`` if none does, or it is not known.
    channels: int | None = None


@dataclass
class ActivationEvent:
    """What was seen of a model's activations in one stretch of training: rows that wait, and sums."""

    waiting: list[Taken] = field(default_factory=list)  # rows that are not summed yet
    sums: Parts = field(default_factory=list)  # by site, the columns of `SUMS`
    alive: list[tuple[list[int], Tensor | None]] = field(default_factory=list)  # by site, which channels are alive
    step: int = 0  # the step that was measured
    seconds: float = 0.0  # what it cost so far
    interval: int = 0  # optimizer steps since the measurement before


class ActivationEvaluator:
    """The activations of a model's sites; those that compute the same function are evaluated together."""

    def __init__(self, activations: Sequence[nn.Module], registry: ActivationRegistry) -> None:
        self.reference: Tensor | None = None  # as `ActivationRecorder.reference`
        # Of each site, whether its parameters may depend on the channel, so that it takes whole examples.
        self.whole_examples = [
            any(tensor.numel() > 1 for tensor in (*module.parameters(), *module.buffers())) for module in activations
        ]
        self._formulas = [formulas_of(module, registry) for module in activations]
        # Of each site, a name shared by all modules that compute the same function; None for one with state of its own.
        specs = [registry.spec_of(module) for module in activations]
        self._shared = [
            None if spec.opaque or has_own_state(module) else str(spec)
            for module, spec in zip(activations, specs, strict=True)
        ]
        # Of each site, whether its activation has parameters or buffers, or is not registered.
        self.have_state = [name is None for name in self._shared]
        self._index: dict[tuple[torch.device, tuple[int, ...]], Tensor] = {}

    def saw_all(self, event: ActivationEvent) -> bool:
        """Return whether every site was called."""
        seen = {taken.number for taken in event.waiting}
        return len(seen.union(*(numbers for numbers, _ in event.sums))) == len(self._formulas)

    def see(self, event: ActivationEvent, taken: Iterable[Taken]) -> None:
        """Sum inputs at once."""
        for numbers, rows, channels in self._groups(taken):
            pivot, scale = self.pivot(rows.device), None
            if self.reference is not None and isinstance(pivot, Tensor):
                index = self._numbers(numbers, rows.device)
                pivot, scale = pivot[index], self.reference[:, 1].to(rows.device)[index]
            channel_dim = None if channels is None else channels + 1
            with torch.no_grad(), torch.autocast(rows.device.type, enabled=False):
                activity = measure(self._formulas[numbers[0]], rows, pivot=pivot, scale=scale, channel_dim=channel_dim)
            event.sums.append((numbers, activity.sums))
            if rows.numel() > 0:  # nothing says which channels pass nothing on where there is nothing
                event.alive.append((numbers, activity.alive))

    def moments(self, event: ActivationEvent, device: torch.device | None = None) -> Tensor:
        """Return count, sum and sum of squares of what waits, which goes on waiting: a row a site; finite elements."""
        device = device or _device_of(event)
        parts = []
        for numbers, rows, _ in self._groups(event.waiting):
            x = rows.flatten(1).to(accumulation_dtype(device))
            finite = x.abs().lt_(torch.inf)
            x = x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
            parts.append((numbers, torch.stack([finite.sum(1), x.sum(1), x.square().sum(1)], dim=1)))
        return self._table(parts, 3, device)

    def sums(self, event: ActivationEvent, device: torch.device | None = None) -> Tensor:
        """Return all sums, a row a site, the columns of `SUMS`; they can be added to those of other ranks."""
        device = device or _device_of(event)
        self._see_waiting(event)
        return self._table(event.sums, len(SUMS), device)

    def alive_channels(self, event: ActivationEvent) -> dict[int, Tensor]:
        """Return, by site, which channels have |f'| >= 0.01 at any element, for sites that always had equally many."""
        self._see_waiting(event)
        masks: dict[int, Tensor | None] = {}
        for numbers, rows in event.alive:
            for number, mask in zip(numbers, [None] * len(numbers) if rows is None else rows.unbind(), strict=True):
                previous = masks.get(number, mask)
                if mask is None or previous is None or previous.shape != mask.shape:
                    masks[number] = None
                else:
                    masks[number] = mask if previous is mask else previous | mask
        return {number: mask for number, mask in masks.items() if mask is not None}

    def pivot(self, device: torch.device) -> Tensor | float:
        """Return what is subtracted from each site's inputs before powers are taken: one number a site, or 0."""
        return 0.0 if self.reference is None else self.reference[:, 0].nan_to_num(nan=0.0).to(device)

    def _see_waiting(self, event: ActivationEvent) -> None:
        waiting, event.waiting = event.waiting, []
        self.see(event, waiting)

    def _groups(self, taken: Iterable[Taken]) -> Iterator[tuple[list[int], Tensor, int | None]]:
        """Yield inputs of all sites with the same activation, shape, channels, type and device, stacked."""
        # With the sites' numbers before, and after them the dimension of each input that counts channels.
        groups: dict[Any, tuple[list[int], list[Tensor], int | None]] = {}
        for number, rows, channels in taken:
            shared = self._shared[number]
            identity = object() if shared is None else shared
            key = (identity, rows.shape, channels, rows.dtype, rows.device)
            numbers, inputs, _ = groups.setdefault(key, ([], [], channels))
            numbers.append(number)
            inputs.append(rows)
        for numbers, inputs, channels in groups.values():
            yield numbers, torch.stack(inputs) if len(inputs) > 1 else inputs[0].unsqueeze(0), channels

    def _table(self, parts: Parts, columns: int, device: torch.device) -> Tensor:
        """Add up what belongs to the same site: ``[sites, columns]``."""
        table = torch.zeros(len(self._formulas), columns, dtype=accumulation_dtype(device), device=device)
        for numbers, rows in parts:
            table.index_add_(0, self._numbers(numbers, device), rows.to(table))
        return table

    def _numbers(self, numbers: list[int], device: torch.device) -> Tensor:
        """Return site numbers as a tensor on a device, where it is kept: making one there would wait for the device."""
        key = (device, tuple(numbers))
        if key not in self._index:
            self._index[key] = torch.tensor(numbers, device=device)
        return self._index[key]


def _device_of(event: ActivationEvent) -> torch.device:
    """Return where the inputs were."""
    if event.waiting:
        return event.waiting[0].rows.device
    return event.sums[0][1].device if event.sums else torch.device("cpu")
