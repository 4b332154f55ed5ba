"""Running a Trainer with a monitor in it, and what it takes of each step: operations, waits, processor time."""

import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch.profiler import ProfilerActivity, profile

HOOKS = (
    "setup",
    "on_fit_start",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_train_end",
    "teardown",
)
LOGGING_INTERVAL = 50
"""Steps between two logging steps of the Trainer, its default; the file is written as often (half its default)."""

ATTACHING = ("on_fit_start", "on_train_batch_start")


def clock_cost() -> float:
    """Return what reading the clock twice shows when nothing lies between.

    Returns:
        Seconds, the smallest of many.
    """
    return min(-(time.thread_time() - time.thread_time()) for _ in range(1000))


CLOCK = clock_cost()


class Timed(Callback):
    """Passes every hook on to another callback, and adds up the processor seconds spent there and in its module hooks.

    Processor seconds of this thread (``time.thread_time``): other processes do not lengthen them.

    Args:
        callback: What is timed.

    Attributes:
        steps: Seconds that each training step took in it; the end of an epoch belongs to its last step.
    """

    def __init__(self, callback: Callback) -> None:
        self.callback = callback
        self.steps: list[float] = []
        self._seconds = 0.0
        for name in HOOKS:
            setattr(self, name, self._forwarder(name))

    def _forwarder(self, name: str) -> Callable[..., None]:
        hook = self._timed(getattr(self.callback, name))

        def forward(*arguments: Any, **options: Any) -> None:
            if name == "on_train_batch_start":
                self._seconds = 0.0
            hook(*arguments, **options)
            if name in ATTACHING:
                self._time_module_hooks(arguments[1])
            if name == "on_train_batch_end":
                self.steps.append(self._seconds)
            elif name == "on_train_epoch_end":
                self.steps[-1] = self._seconds

        return forward

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            time.thread_time()  # after the model's work the clock itself is out of the caches: 20 us, read once in vain
            start = time.thread_time()
            result = function(*arguments, **options)
            self._seconds += time.thread_time() - start - CLOCK
            return result

        timed.__dict__["is_timed"] = True
        return timed

    def _time_module_hooks(self, model: LightningModule) -> None:
        for module in model.modules():
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                for number, hook in hooks.items():
                    if not getattr(hook, "is_timed", False):
                        hooks[number] = self._timed(hook)


class TimedCSVLogger(CSVLogger):
    """Adds up the processor seconds in which figures are written.

    Attributes:
        seconds: So far.
    """

    seconds = 0.0

    def log_metrics(self, *arguments: Any, **options: Any) -> None:
        """Write figures."""
        start = time.thread_time()
        super().log_metrics(*arguments, **options)
        self.seconds += time.thread_time() - start


class Clock(Callback):
    """First and last among the callbacks: the processor seconds of each step, and of its forward and backward pass.

    Attributes:
        steps: Seconds of each whole step, callbacks included.
        gradients: Seconds up to the optimizer's step.
        operations: By operator of torch's, how often it ran in the steps that were profiled.
        logger: Seconds of each whole step in which the logger wrote.
    """

    def __init__(self, profiled_steps: range = range(0)) -> None:
        self.steps: list[float] = []
        self.gradients: list[float] = []
        self.operations: Counter[str] = Counter()
        self.last = _Last(self)
        self.logger: list[float] = []
        self._profiled_steps = profiled_steps
        self._profile: profile | None = None
        self._start = 0.0

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Start a step."""
        for times in (self.steps, self.logger):
            times.append(0.0)
        self._go_on(trainer)

    def on_before_optimizer_step(self, *_: Any) -> None:
        """Note the time of the gradient."""
        self.gradients.append(time.thread_time() - self._start)

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """Go on: what callbacks do here belongs to the last step."""
        self._go_on(trainer)

    def stop(self, trainer: Trainer) -> None:
        """Note the times of the step."""
        self.steps[-1] += time.thread_time() - self._start
        self.logger[-1] += trainer.logger.seconds - self._written
        if self._profile is not None:
            self._profile.__exit__(None, None, None)
            rows = self._profile.key_averages()
            self.operations.update({row.key: row.count for row in rows if row.key.startswith("aten::")})
            self._profile = None

    def _go_on(self, trainer: Trainer) -> None:
        self._written = trainer.logger.seconds
        if len(self.steps) - 1 in self._profiled_steps:  # each by itself: the profiler's time grows with the square
            self._profile = profile(activities=[ProfilerActivity.CPU], acc_events=True)
            self._profile.__enter__()
        self._start = time.thread_time()


class _Last(Callback):
    """Stops a `Clock`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Stop."""
        self._clock.stop(trainer)

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """Stop."""
        self._clock.stop(trainer)


def fit(
    model: LightningModule,
    data: LightningDataModule,
    callbacks: Sequence[Callback],
    steps: int,
    profiled_steps: range = range(0),
) -> Clock:
    """Train for some steps with a CSVLogger, as anybody would, but without validation and progress bar.

    Args:
        model: The model; it goes on from where it is.
        data: Its data.
        callbacks: Monitors.
        steps: How many steps.
        profiled_steps: The steps whose operations are counted.

    Returns:
        What was measured.
    """
    clock = Clock(profiled_steps)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Lightning, about workers and intervals: not the benchmark's subject
        trainer = Trainer(
            max_steps=steps,
            accelerator="cpu",
            devices=1,
            logger=TimedCSVLogger(folder, flush_logs_every_n_steps=LOGGING_INTERVAL),
            callbacks=[clock, *callbacks, clock.last],
            limit_val_batches=0,
            num_sanity_val_steps=0,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, datamodule=data)
    torch.set_grad_enabled(True)
    return clock
