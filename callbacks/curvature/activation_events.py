"""Measurements of activations, from the step that was recorded to figures on the host."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from lit_gelu.callbacks.curvature.activation_measurement import ActivationMeasurement
from lit_gelu.callbacks.curvature.activation_readout import Readout
from lit_gelu.curvature.activation.recording import Recording


@dataclass
class ActivationEvent:
    """A measurement.

    Args:
        step: The step that was measured.
        source: What measured, and can read the figures.
        recording: What was recorded.
        device: Where to sum it.
        seconds: What it cost so far.
        interval: Optimizer steps since the measurement before.
        readout: The figures on their way to the host; ``None`` before they are summed.
    """

    step: int
    source: ActivationMeasurement
    recording: Recording
    device: torch.device
    seconds: float
    interval: int = 0
    readout: Readout | None = None

    def reduce(self) -> Readout:
        """Sum what was recorded, unless that was done.

        Returns:
            The figures on their way.
        """
        if self.readout is None:
            start = time.perf_counter()
            self.readout = self.source.reduce(self.recording, self.step, self.device)
            self.seconds += time.perf_counter() - start
        return self.readout


class EventQueue:
    """Measurements that are not logged yet, the oldest first.

    Many small operations one after the other take half the time where the code that runs them was just used: so rows of
    several measurements wait here and are summed together.
    """

    def __init__(self) -> None:
        self._events: list[ActivationEvent] = []

    def add(self, event: ActivationEvent) -> None:
        """Add a measurement.

        Args:
            event: The youngest.
        """
        self._events.append(event)

    def clear(self) -> None:
        """Forget all."""
        self._events.clear()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def waiting(self) -> int:
        """How many are not summed."""
        return sum(event.readout is None for event in self._events)

    def reduce(self) -> list[ActivationEvent]:
        """Sum all; to be called on all ranks.

        Returns:
            The measurements, none of which is logged yet.
        """
        for event in self._events:
            event.reduce()
        return list(self._events)

    def arrived(self, *, wait: bool) -> Iterator[ActivationEvent]:
        """Go through the measurements whose figures have arrived on the host, and forget these.

        Args:
            wait: Whether to wait for all, and to sum first those that are not: on all ranks then.

        Yields:
            The oldest first.
        """
        while self._events and (wait or self._has_arrived(self._events[0])):
            self._events[0].reduce()
            yield self._events.pop(0)

    @staticmethod
    def _has_arrived(event: ActivationEvent) -> bool:
        return event.readout is not None and event.readout.ready
