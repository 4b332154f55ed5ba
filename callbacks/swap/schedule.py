"""`SwapSchedule`: when a swap is due."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lit_gelu.arguments import check_count, check_one_of, is_number
from lit_gelu.callbacks.trainer import is_trial_run, steps_of_run
from lit_gelu.curvature.ranks import sum_over_ranks
from lit_gelu.errors import ArgumentError, CheckpointError, shown

Mode = Literal["min", "max"]


@dataclass
class SwapSchedule:
    """When a swap is due: at an epoch, after a number of optimizer steps, or when a metric says so.

    A check of the metric improves if it is better than the best so far; NaN never counts as better. It fires at the
    ``patience``-th check in a row that does not improve, as `EarlyStopping` stops.
    """

    at_epoch: int | None = None
    at_step: int | None = None
    when: str | None = None  # the metric's name
    mode: Mode = "min"  # whether smaller (``"min"``) or larger (``"max"``) is better
    patience: int = 3  # checks without improvement
    reaches: float | None = None  # fire at the first check as good as this value instead
    best: float = field(default=math.nan, init=False)
    waited: int = field(default=0, init=False)
    fired: bool = field(default=False, init=False)
    checked_at: int = field(default=-1, init=False)  # optimizer steps at the last check of a training epoch

    def __post_init__(self) -> None:
        if sum(trigger is not None for trigger in (self.at_epoch, self.at_step, self.when)) != 1:
            raise ArgumentError(
                "ActivationSwap takes one of at_epoch, at_step and when, not "
                f"at_epoch={self.at_epoch!r}, at_step={self.at_step!r}, when={self.when!r}."
            )
        check_count("at_epoch", 0 if self.at_epoch is None else self.at_epoch, 0)
        check_count("at_step", 0 if self.at_step is None else self.at_step, 0)
        check_count("patience", self.patience, 1)
        check_one_of(get_args(Mode), mode=self.mode)
        if self.when is None and (self.mode, self.patience, self.reaches) != ("min", 3, None):
            raise ArgumentError("mode=, patience= and reaches= are of a metric: give when=, its name, with them.")
        if self.reaches is not None and not is_number(self.reaches):
            raise ArgumentError(f"reaches={self.reaches!r} is not accepted. Give a finite number, or None.")

    def describe(self) -> dict[str, Any]:
        """Return what tells this schedule from others, as plain data."""
        if self.when is None:
            return {"at_epoch": self.at_epoch, "at_step": self.at_step}
        rule = {"patience": self.patience} if self.reaches is None else {"reaches": self.reaches}
        return {"when": self.when, "mode": self.mode, **rule}

    def is_due(self, trainer: Trainer) -> bool:
        """Return whether the trigger is reached; a resumed run may be past it."""
        if self.at_epoch is not None:
            return trainer.current_epoch >= self.at_epoch
        return self.fired if self.at_step is None else trainer.global_step >= self.at_step

    def reset(self) -> None:
        """Forget all checks of the metric: they were of another model."""
        self.best, self.waited, self.fired, self.checked_at = math.nan, 0, False, -1

    def check(self, value: float) -> None:
        """Take another value of the metric."""
        sign = 1 if self.mode == "min" else -1
        if self.reaches is not None:
            self.fired = self.fired or sign * value <= sign * self.reaches
            return
        is_first = math.isnan(self.best) and not math.isnan(value)
        if is_first or sign * value < sign * self.best:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        self.fired = self.fired or self.waited >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """Return what the checks so far have come to, as plain data; nothing where there are none."""
        if self.when is None:
            return {}
        return {"best": self.best, "waited": self.waited, "fired": self.fired, "checked_at": self.checked_at}

    def load_state_dict(self, state: object) -> None:
        """Go on from a saved state."""
        kinds = {"best": float, "waited": int, "fired": bool, "checked_at": int}
        if not isinstance(state, dict) or not all(isinstance(state.get(name), kind) for name, kind in kinds.items()):
            raise CheckpointError(f"The checkpoint is damaged: it has {shown(state)} as the state of a swap.")
        vars(self).update({name: state[name] for name in kinds})

    def look_at_metric(self, trainer: Trainer, pl_module: LightningModule, *, train_epoch_end: bool) -> None:
        """Take the metric's present value, the mean over all ranks: they decide alike."""
        if self.when is None or trainer.sanity_checking or trainer.enable_validation == train_epoch_end:
            return
        if train_epoch_end and self.checked_at == trainer.global_step:
            return  # a run that is resumed from the end of an epoch goes through it once more
        value = trainer.callback_metrics.get(self.when)
        logged = [math.nan if value is None else float(value), float(value is not None), 1.0]
        if trainer.world_size > 1:
            logged = sum_over_ranks(torch.tensor(logged, dtype=torch.float64, device=pl_module.device)).tolist()
        total, present, ranks = logged
        if present < ranks:
            raise ArgumentError(
                f"when={self.when!r} was not logged. Logged were: {', '.join(sorted(trainer.callback_metrics))}. Name "
                "one of these, or log it in every validation; in a run without validation, in training_step with "
                "on_epoch=True."
            )
        self.check(total / ranks)
        if train_epoch_end:
            self.checked_at = trainer.global_step

    def warn_if_beyond_end(self, trainer: Trainer, pl_module: LightningModule, name: str) -> None:
        """Warn if the run ends before the swap."""
        steps = steps_of_run(trainer) if pl_module.automatic_optimization else math.inf  # else a batch may take several
        by_epoch = self.at_epoch is not None and 0 < (trainer.max_epochs or 0) <= self.at_epoch
        by_step = self.at_step is not None and self.at_step >= steps
        if (by_epoch or by_step) and not is_trial_run(trainer):
            end = f"{trainer.max_epochs} epochs" if by_epoch else f"{steps} steps"
            rank_zero_warn(f"{name} will not be made: this run ends after {end}.")
