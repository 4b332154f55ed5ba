"""`MeasurementSchedule`: at which optimizer steps a monitor measures."""

import math
from collections.abc import Iterable
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lit_gelu.arguments import check_count, is_count
from lit_gelu.callbacks.trainer import is_trial_run, logged_step, steps_of_run
from lit_gelu.errors import ArgumentError


class MeasurementSchedule:
    """Every so many optimizer steps, at the end of every so many epochs, or at chosen steps.

    Steps are counted as Lightning's loggers count them, from 0: ``every_n_steps=n`` means n-1, 2n-1, ..., as
    ``log_every_n_steps=n`` does; ``every_n_epochs=n`` the last step of the epochs n-1, 2n-1, ....
    """

    def __init__(
        self,
        every_n_steps: int | None = None,
        every_n_epochs: int | None = None,
        at_steps: Iterable[int] | None = None,
        *,
        default: int = 50,  # of `every_n_steps`, if none of the three is given
    ) -> None:
        way_count = sum(way is not None for way in (every_n_steps, every_n_epochs, at_steps))
        if way_count > 1:
            raise ArgumentError(f"{every_n_steps=}, {every_n_epochs=}, {at_steps=}: give one.")
        for name, number in (("every_n_steps", every_n_steps), ("every_n_epochs", every_n_epochs)):
            check_count(name, 1 if number is None else number, 1)
        steps = None
        if at_steps is not None:
            steps = frozenset(at_steps) if isinstance(at_steps, Iterable) else frozenset()
            if not steps or not all(map(is_count, steps)):
                raise ArgumentError(f"{at_steps=} is not accepted. Give step numbers, a list of integers from 0.")
        self.every_n_steps = default if way_count == 0 else every_n_steps
        self.every_n_epochs, self.at_steps = every_n_epochs, steps
        self.reset()

    def reset(self) -> None:
        """Start anew, for another run; call it in ``setup``, after which a checkpoint is loaded."""
        self.events = 0  # including those of the runs that this one resumes
        self._measured_step = -1  # of the last event

    def is_due(self, trainer: Trainer) -> bool:
        """Return whether the batch at hand is to be measured: whether it belongs to a step of the schedule."""
        step = logged_step(trainer)
        if step == self._measured_step:
            return False
        if self.at_steps is not None:
            return step in self.at_steps
        if self.every_n_epochs is not None:
            return (trainer.current_epoch + 1) % self.every_n_epochs == 0 and _is_last_step_of_epoch(trainer)
        return self.every_n_steps is not None and (step + 1) % self.every_n_steps == 0

    def record(self, trainer: Trainer) -> int:
        """Take note of a measurement; return the optimizer steps since the one before, or since the first step."""
        step = logged_step(trainer)
        interval = step - self._measured_step
        self.events += 1
        self._measured_step = step
        return interval

    def warn_if_never_due(self, trainer: Trainer, name: str) -> None:
        """Warn if the run is too short for a single measurement."""
        if is_trial_run(trainer):
            return
        steps, epochs, every = steps_of_run(trainer), trainer.max_epochs, self.every_n_epochs
        if every is not None:
            of_epoch = trainer.num_training_batches / trainer.accumulate_grad_batches  # infinite if nobody knows
            is_countable = trainer.lightning_module.automatic_optimization and math.isfinite(of_epoch)
            first = every * math.ceil(of_epoch) if is_countable else math.inf
            never = (epochs is not None and 0 <= epochs < every) or steps < first < math.inf
        else:
            never = steps < (self.every_n_steps or 0) or (self.at_steps is not None and steps <= min(self.at_steps))
        if never:
            options = {"every_n_steps": self.every_n_steps, "every_n_epochs": every, "at_steps": self.at_steps}
            arguments = ", ".join(f"{option}={value}" for option, value in options.items() if value is not None)
            length = f"{steps} steps" if math.isfinite(steps) else f"{epochs} epochs"
            rank_zero_warn(f"{name}({arguments}) will measure nothing: this run has {length}. Measure earlier.")

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to measure at the same steps."""
        return {"events": self.events, "measured_step": self._measured_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.events, self._measured_step = state_dict["events"], state_dict["measured_step"]


def _is_last_step_of_epoch(trainer: Trainer) -> bool:
    """Return whether the batch at hand belongs to the epoch's last optimizer step."""
    # If the loader's length is unknown, only its very last batch can be told to be in the last step.
    epoch_loop = trainer.fit_loop.epoch_loop
    batches, accumulated = trainer.num_training_batches, trainer.accumulate_grad_batches
    if math.isinf(batches):
        return epoch_loop._num_ready_batches_reached()
    return epoch_loop.batch_idx // accumulated == (int(batches) - 1) // accumulated
