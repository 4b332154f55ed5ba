"""Measurements of activations, from the step that was recorded to figures on the host."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from lit_gelu.curvature.activation.recording import Recording
from lit_gelu.curvature.activation_measurement import ActivationMeasurement
from lit_gelu.curvature.readout import Readout


@dataclass
class ActivationEvent:
    """A measurement.

    Args:
        step: The step that was measured.
        recording: What was recorded.
        seconds: What it cost so far.
        interval: Optimizer steps since the measurement before.
    """

    step: int
    recording: Recording
    seconds: float
    interval: int = 0


@dataclass
class EventGroup:
    """Measurements that are summed together.

    Args:
        source: What measured, and can read the figures.
        device: Where to sum.
        events: In the order of their steps.
        readout: The figures on their way to the host; ``None`` before they are summed.
    """

    source: ActivationMeasurement
    device: torch.device
    events: list[ActivationEvent] = field(default_factory=list)
    readout: Readout | None = None

    def reduce(self) -> Readout:
        """Sum what was recorded, unless that was done.

        Returns:
            The figures on their way.
        """
        if self.readout is None:
            start = time.perf_counter()
            self.readout = self.source.reduce([event.recording for event in self.events], self.device)
            seconds = (time.perf_counter() - start) / len(self.events)
            for event in self.events:
                event.seconds += seconds
        return self.readout


class EventQueue:
    """Measurements that are not logged yet, the oldest first.

    What follows the sums is some hundred operations on a few numbers, and takes as long for many measurements as for
    one: so rows of several wait here.
    """

    def __init__(self) -> None:
        self._groups: list[EventGroup] = []

    def __len__(self) -> int:
        return sum(len(group.events) for group in self._groups)

    @property
    def waiting(self) -> int:
        """How many are not summed."""
        return sum(len(group.events) for group in self._groups if group.readout is None)

    def add(self, event: ActivationEvent, source: ActivationMeasurement, device: torch.device) -> None:
        """Add a measurement.

        Args:
            event: The youngest.
            source: What measured.
            device: Where to sum.
        """
        last = self._groups[-1] if self._groups else None
        if last is None or last.readout is not None or last.source is not source:
            last = EventGroup(source, device)
            self._groups.append(last)
        last.events.append(event)

    def clear(self) -> None:
        """Forget all."""
        self._groups.clear()

    def reduce(self) -> list[EventGroup]:
        """Sum all; to be called on all ranks.

        Returns:
            All measurements, none of which is logged yet.
        """
        for group in self._groups:
            group.reduce()
        return list(self._groups)

    def arrived(self, *, wait: bool) -> Iterator[EventGroup]:
        """Go through the measurements whose figures have arrived on the host, and forget these.

        Args:
            wait: Whether to wait for all, and to sum first those that are not: on all ranks then.

        Yields:
            The oldest first.
        """
        while self._groups and (wait or self._has_arrived(self._groups[0])):
            self._groups[0].reduce()
            yield self._groups.pop(0)

    @staticmethod
    def _has_arrived(group: EventGroup) -> bool:
        return group.readout is not None and group.readout.ready
