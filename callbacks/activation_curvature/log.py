"""`ActivationLog`: what is logged of measurements of activations, once they have arrived."""

import time
from dataclasses import dataclass, field

import torch
from lightning.pytorch import Callback, Trainer

from lit_gelu.callbacks.trainer import Path, callbacks_of, log_figures
from lit_gelu.curvature.activation.evaluator import ActivationEvent
from lit_gelu.curvature.activation_measurement import ActivationMeasurement, Figures, Readout, has_arrived
from lit_gelu.errors import ArgumentError

PREFIX = "curvature"


def refuse_namesake(trainer: Trainer, monitor: Callback, name: str) -> None:
    """Refuse another monitor of a Trainer that writes under the same names."""
    others = [callback for callback in callbacks_of(trainer) if isinstance(callback, type(monitor))]
    if any(getattr(other, "name", None) == name for other in others if other is not monitor):
        raise ArgumentError(
            f"Two monitors of activations are both named {name!r}, and would overwrite each other's figures. "
            "Give one of them a name: ActivationCurvatureMonitor(name='encoder', ...) logs as curvature/encoder/..."
        )


@dataclass
class _SummedTogether:
    """Events that are summed together."""

    source: ActivationMeasurement  # what measured, and can read the figures
    device: torch.device  # where to sum
    events: list[ActivationEvent] = field(default_factory=list)  # in the order of their steps
    readout: Readout | None = None  # the figures on their way to the host; ``None`` before they are summed


class ActivationLog:
    """Writes measurements to the loggers of a Trainer, and keeps the last one."""

    # What follows the sums is some hundred operations on a few numbers, and takes as long for many measurements as for
    # one: so rows of several wait here, the oldest first.

    def __init__(self, *, gaussian: bool, name: str = "") -> None:
        self.latest: Figures = {}  # the figures of the last measurement that was logged, by site and statistic
        self.latest_gaussian: Figures = {}  # the same for a normal input
        self._groups: list[_SummedTogether] = []
        self._gaussian = gaussian
        self._prefix = (PREFIX, name) if name else (PREFIX,)

    @property
    def is_empty(self) -> bool:
        """Whether all that was measured is logged."""
        return not self._groups

    @property
    def waiting(self) -> int:
        """How many measurements are not summed."""
        return sum(len(group.events) for group in self._groups if group.readout is None)

    def clear(self) -> None:
        """Forget what is not logged, and the last measurement."""
        self._groups.clear()
        self.latest, self.latest_gaussian = {}, {}

    def add(self, event: ActivationEvent, source: ActivationMeasurement, device: torch.device) -> None:
        """Take in the youngest measurement, to be summed on a device."""
        last = self._groups[-1] if self._groups else None
        if last is None or last.readout is not None or last.source is not source:
            last = _SummedTogether(source, device)
            self._groups.append(last)
        last.events.append(event)

    def reduce(self) -> None:
        """Sum all that is not; to be called on all ranks."""
        for group in self._groups:
            _reduced(group)

    def write(self, trainer: Trainer, *, wait: bool = True) -> list[Figures]:
        """Log what has arrived on the host, and return the measured figures, the oldest first."""
        # With `wait`, all that was measured, when it has arrived: on all ranks then.
        written = []
        while self._groups and (wait or _is_there(self._groups[0])):
            for measured, predicted in self._write_group(trainer, self._groups.pop(0)):
                self.latest, self.latest_gaussian = measured, predicted
                written.append(measured)
        return written

    def _write_group(self, trainer: Trainer, group: _SummedTogether) -> list[tuple[Figures, Figures]]:
        """Write figures to every logger; wait for them if they have not arrived."""
        prefix, written = self._prefix, []
        all_figures = group.source.figures(_reduced(group), gaussian=self._gaussian)
        for event, (measured, predicted) in zip(group.events, all_figures, strict=True):
            named: dict[Path, float] = {
                (*prefix, site, name): value for site, row in measured.items() for name, value in row.items()
            }
            named[*prefix, "activations", "seconds"] = event.seconds
            named[*prefix, "activations", "interval"] = event.interval
            for site, row in predicted.items():
                named |= {(*prefix, site, "gaussian", name): value for name, value in row.items()}
            log_figures(trainer, named, event.step)
            written.append((measured, predicted))
        return written


def _reduced(group: _SummedTogether) -> Readout:
    """Sum what was recorded, unless that was done."""
    if group.readout is None:
        start = time.perf_counter()
        group.readout = group.source.reduce(group.events, group.device)
        seconds = (time.perf_counter() - start) / len(group.events)
        for event in group.events:
            event.seconds += seconds
    return group.readout


def _is_there(group: _SummedTogether) -> bool:
    return group.readout is not None and has_arrived(group.readout)
