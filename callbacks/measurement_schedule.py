"""`MeasurementSchedule`: at which optimizer steps a monitor measures, and what its measurements may cost."""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lit_gelu.arguments import is_count, is_number
from lit_gelu.callbacks.trainer import is_trial_run, logged_step, steps_of_epoch, steps_of_run
from lit_gelu.curvature.ranks import maximum_over_ranks
from lit_gelu.errors import ArgumentError


@dataclass(frozen=True)
class EventCost:
    """What one measurement cost."""

    seconds: float  # its wall-clock time; of several ranks the longest, where ``max_overhead`` is set
    interval: int  # optimizer steps since the measurement before, or since the first step that was seen


class MeasurementSchedule:
    """Every so many optimizer steps, at the end of every so many epochs, or at chosen steps.

    Steps are counted as Lightning's loggers count them: the first optimizer step has the number 0, and all
    micro-batches of an accumulated step have the same. ``every_n_steps=n`` means the steps n-1, 2n-1, ..., those at
    which Lightning logs with ``log_every_n_steps=n``; ``every_n_epochs=n`` the last step of the epochs n-1, 2n-1, ...;
    ``at_steps`` names the numbers themselves. A monitor asks `is_due` as a batch begins, and calls `record_cost` after
    it measured: a step is then no longer due.

    With ``max_overhead=h``, steps are left out until training has paid for what was measured: after an event,

    ``seconds of all events <= h * (seconds of training without them, so far and up to the next event)``,

    where the time up to the next event is foreseen from the mean time of the steps since the last one. All ranks decide
    on the same times, the longest over ranks; this is one all-reduce of two numbers per event, and none without
    ``max_overhead`` or with one process.
    """

    def __init__(
        self,
        every_n_steps: int | None = None,
        every_n_epochs: int | None = None,
        at_steps: Iterable[int] | None = None,
        max_overhead: float | None = None,
        *,
        default: int = 50,  # of `every_n_steps`, if none of the three is given
    ) -> None:
        given = sum(way is not None for way in (every_n_steps, every_n_epochs, at_steps))
        if given > 1:
            raise ArgumentError(f"{every_n_steps=}, {every_n_epochs=}, {at_steps=}: give one.")
        for name, number in (("every_n_steps", every_n_steps), ("every_n_epochs", every_n_epochs)):
            if number is not None and not is_count(number, 1):
                raise ArgumentError(f"{name}={number!r} is not accepted. Give a positive integer.")
        steps = None
        if at_steps is not None:
            steps = frozenset(at_steps) if isinstance(at_steps, Iterable) else frozenset()
            if not steps or not all(map(is_count, steps)):
                raise ArgumentError(f"{at_steps=} is not accepted. Give step numbers, a list of integers from 0.")
        if max_overhead is not None:
            if not (is_number(max_overhead) and max_overhead > 0):
                raise ArgumentError(f"{max_overhead=} is not accepted. Give a positive share such as 0.01, or None.")
            if steps is not None:
                raise ArgumentError(f"{max_overhead=} stretches an interval, and at_steps has none. Leave out one.")
        self.every_n_steps = default if given == 0 else every_n_steps
        self.every_n_epochs, self.at_steps, self.max_overhead = every_n_epochs, steps, max_overhead
        self.reset()

    def reset(self) -> None:
        """Start anew, for another run; call it in ``setup``, after which a checkpoint is loaded."""
        self.events = 0  # of the runs that this one continues too
        self._measured_step = -1  # of the last event
        self._next_step = 0  # none is measured before
        self._cost = self._training = 0.0  # seconds of all events, and of training without them
        self._clock = _StepClock()

    def is_due(self, trainer: Trainer) -> bool:
        """Return whether the batch at hand is to be measured: whether it belongs to a step of the schedule."""
        # The clock of ``max_overhead`` starts at the first call, so ask at every batch.
        step = logged_step(trainer)
        if self.max_overhead is not None:
            self._clock.start(step)
        return step != self._measured_step and step >= self._next_step and self._is_listed(trainer, step)

    def record_cost(self, trainer: Trainer, seconds: float) -> EventCost:
        """Take note of a measurement of so many seconds here, and decide when the next may be; on all ranks."""
        step = logged_step(trainer)
        interval = step - self._measured_step
        self.events += 1
        self._measured_step = step
        if self.max_overhead is not None:
            elapsed, steps = self._clock.read(step)
            if trainer.world_size > 1:
                device = trainer.strategy.root_device
                times = torch.tensor([seconds, elapsed - seconds], device=device)  # float32: MPS has no other
                seconds, training = maximum_over_ranks(times).tolist()
            else:
                training = elapsed - seconds
            self._cost += seconds
            self._training += max(training, 0.0)
            per_step = max(training / steps, 1e-9)
            debt = self._cost - self.max_overhead * self._training
            self._next_step = step + max(1, math.ceil(debt / (self.max_overhead * per_step)))
        return EventCost(seconds, interval)

    def pause(self) -> None:
        """Stop the clock of ``max_overhead`` until the next batch: what follows is no training, such as validation."""
        self._clock.pause()

    def warn_if_never_due(self, trainer: Trainer, name: str) -> None:
        """Warn if the run is too short for a single measurement."""
        if is_trial_run(trainer):
            return
        steps, epochs, every = steps_of_run(trainer), trainer.max_epochs, self.every_n_epochs
        if every is not None:
            first = every * steps_of_epoch(trainer) if trainer.lightning_module.automatic_optimization else math.inf
            never = (epochs is not None and 0 <= epochs < every) or steps < first < math.inf
        else:
            never = steps < (self.every_n_steps or 0) or (self.at_steps is not None and steps <= min(self.at_steps))
        if never:
            options = {"every_n_steps": self.every_n_steps, "every_n_epochs": every, "at_steps": self.at_steps}
            given = ", ".join(f"{option}={value}" for option, value in options.items() if value is not None)
            length = f"{steps} steps" if math.isfinite(steps) else f"{epochs} epochs"
            rank_zero_warn(f"{name}({given}) will measure nothing: this run has {length}. Measure earlier.")

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to measure at the same steps."""
        return {
            "events": self.events,
            "measured_step": self._measured_step,
            "next_step": self._next_step,
            "cost_seconds": self._cost,
            "training_seconds": self._training + self._clock.elapsed(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.events = state_dict["events"]
        self._measured_step = state_dict["measured_step"]
        self._next_step = state_dict["next_step"]
        self._cost, self._training = state_dict["cost_seconds"], state_dict["training_seconds"]
        self._clock = _StepClock()

    def _is_listed(self, trainer: Trainer, step: int) -> bool:
        """Return whether the schedule names the step."""
        if self.at_steps is not None:
            return step in self.at_steps
        if self.every_n_epochs is not None:
            return (trainer.current_epoch + 1) % self.every_n_epochs == 0 and _is_last_step_of_epoch(trainer)
        return self.every_n_steps is not None and (step + 1) % self.every_n_steps == 0


class _StepClock:
    """Wall-clock time and steps since the last reading, without pauses."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._elapsed = 0.0
        self._first_step: int | None = None

    def start(self, step: int) -> None:
        """Start, or go on after a pause; no effect while it runs."""
        if self._since is None:
            self._since = time.perf_counter()
        if self._first_step is None:
            self._first_step = step

    def pause(self) -> None:
        """Stop."""
        if self._since is not None:
            self._elapsed += time.perf_counter() - self._since
            self._since = None

    def elapsed(self) -> float:
        """Return seconds since the last reading."""
        return self._elapsed + (0.0 if self._since is None else time.perf_counter() - self._since)

    def read(self, step: int) -> tuple[float, int]:
        """Return seconds and steps, that of the given number included, and start anew after it."""
        elapsed, first = self.elapsed(), step if self._first_step is None else self._first_step
        self._elapsed, self._first_step = 0.0, step + 1
        self._since = time.perf_counter()
        return elapsed, max(1, step + 1 - first)


def _is_last_step_of_epoch(trainer: Trainer) -> bool:
    """Return whether the batch at hand belongs to the epoch's last optimizer step."""
    # Where the loader's length is not known, only its last batch is known to.
    epoch_loop = trainer.fit_loop.epoch_loop
    batches, accumulated = trainer.num_training_batches, trainer.accumulate_grad_batches
    if math.isinf(batches):
        return epoch_loop._num_ready_batches_reached()
    return epoch_loop.batch_idx // accumulated == (int(batches) - 1) // accumulated
