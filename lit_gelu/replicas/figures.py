"""What training steps of a group log: kept for each replica, and given to a Trainer as the mean."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torchmetrics import Metric

from lit_gelu.replicas.forward.log_options import LogOptions

_USUAL = LogOptions()


class StepFigures:
    """The figures of an epoch's training steps.

    Args:
        active: Which replicas are trained, bool ``[replicas]``; what a Trainer is given is the mean of those.
        options: How a figure is logged, by name; what is not there is logged of each step.
    """

    def __init__(self, active: Tensor, options: dict[str, LogOptions]) -> None:
        self.active, self.options = active, options
        self.logged: dict[str, list[Tensor]] = {}  # ``[steps, replicas]`` in parts
        self._latest: dict[str, Tensor] = {}  # what each figure was when a step of the epoch logged it last
        self._of_epoch: dict[str, _EpochFigure] = {}

    def begin_epoch(self) -> None:
        """Forget the epoch before."""
        self.logged, self._latest, self._of_epoch = {}, {}, {}

    def of_epoch_so_far(self) -> dict[str, dict[str, Any]]:
        """Return what a checkpoint has to hold: how figures of the epoch are logged, and each step's, as plain data."""
        return {
            name: {"options": options._asdict(), "values": torch.cat(self.logged[name]).cpu()}
            for name, options in self.options.items()
            if options.on_epoch and name in self.logged
        }

    def go_on_from(self, kept: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what a checkpoint holds."""
        self.begin_epoch()
        for name, entry in kept.items():
            self.options[name] = LogOptions(**entry["options"])
            self.logged[name] = [entry["values"]]

    def end_epoch(self, group: LightningModule) -> None:
        """Let a group log what only a checkpoint of the epoch's last step holds."""
        for name, options in self.options.items():
            if options.on_epoch and name in self.logged and name not in self._of_epoch:
                value = self._mean_of_epoch(name)
                for each in (name, f"{name}_epoch") if options.on_step else (name,):
                    group.log(each, value)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of the active replicas, or of all if none is."""
        if self.active.all() or not self.active.any():
            return values.mean()
        places = self.active.nonzero().flatten()
        return values[places.to(values.device, non_blocking=True)].mean()

    def take(self, group: LightningModule, logged: Mapping[str, Tensor]) -> None:
        """Keep what steps logged, ``[steps, replicas]`` by name, and let a group log it as they asked for."""
        for name, values in logged.items():
            self.logged.setdefault(name, []).append(values)  # where they are: a device is not waited for
            options = self.options.get(name, _USUAL)
            in_bar = name == "train_loss"
            if values.is_cuda and group.trainer.progress_bar_callback is None:
                in_bar = False  # Lightning waits for what a progress bar would show, also where there is none
            if not options.on_epoch:
                group.log(name, self.mean(values[-1]), prog_bar=in_bar)
                continue
            if name not in self._of_epoch:
                self._of_epoch[name] = _EpochFigure(partial(self._mean_of_epoch, name))
            figure = self._of_epoch[name]
            figure.update(self.mean(values[-1]))
            group.log(name, figure, prog_bar=in_bar, on_step=options.on_step, on_epoch=True, metric_attribute=name)

    def of_step(self, logged: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what a run alone has in ``callback_metrics`` behind a step, ``[replicas]`` by name."""
        found: dict[str, Tensor] = {}
        for name, values in logged.items():
            options = self.options.get(name, _USUAL)
            if options.on_step:
                found |= {name: values[-1]} | ({f"{name}_step": values[-1]} if options.on_epoch else {})
        return found

    def of_epoch(self) -> dict[str, Tensor]:
        """Return what a run alone has in ``callback_metrics`` behind an epoch beside that, ``[replicas]`` by name."""
        found: dict[str, Tensor] = {}
        for name, options in self.options.items():
            if options.on_epoch and name in self.logged:
                value = options.of_epoch(torch.cat(self.logged[name]))
                found |= {name: value} | ({f"{name}_epoch": value} if options.on_step else {})
        return found

    def _mean_of_epoch(self, name: str) -> Tensor:
        return self.mean(self.options[name].of_epoch(torch.cat(self.logged[name])))

    def write(self, trainer: Any, parts: Sequence[Mapping[str, Tensor]], before: int, count: int) -> None:
        """Write what steps logged, but for the last one of a batch: Lightning looks at that one alone.

        Args:
            trainer: Whose loggers are written to.
            parts: What the batch's steps logged, ``[steps, replicas]`` by name.
            before: Steps of the whole run before the batch.
            count: Those of the batch.
        """
        every = trainer.log_every_n_steps
        if not every or not trainer.loggers:
            return
        steps = count // len(parts)
        for number, part in enumerate(parts):
            first = before + number * steps  # numbered from 0
            due = [row for row in range(steps) if (first + row + 1) % every == 0 and first + row + 1 < before + count]
            named = self._names_of_steps(part)
            values = {name: value.cpu() for name, value in named.items()} if due else {}  # a device is waited for
            for row in due:
                latest = {**self._latest, **{name: value[row] for name, value in values.items()}}
                means = {name: float(self.mean(value)) for name, value in latest.items()}
                for logger in trainer.loggers:
                    logger.log_metrics({**means, "epoch": trainer.current_epoch}, first + row)
            self._latest.update({name: value[-1] for name, value in named.items()})

    def _names_of_steps(self, part: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the figures that loggers get of each step, by the names that Lightning gives them."""
        found = {}
        for name, values in part.items():
            options = self.options.get(name, _USUAL)
            if options.on_step:
                found[f"{name}_step" if options.on_epoch else name] = values
        return found


class _EpochFigure(Metric):
    """What Lightning asks for a step's value and, at an epoch's end, for the epoch's.

    Args:
        of_epoch: Returns the latter.
    """

    def __init__(self, of_epoch: Callable[[], Tensor]) -> None:
        super().__init__()
        self.of_epoch = of_epoch

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """Compute anew each time: an epoch's value is not that of its first batch."""
        return compute

    def update(self, value: Tensor) -> None:
        """Take the last step's value."""
        self._forward_cache: Any = value

    def compute(self) -> Tensor:
        """Return the epoch's value."""
        return self.of_epoch()
