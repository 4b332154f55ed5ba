"""Running a Trainer with a monitor in it, and what it takes of each step: operations, waits, processor time."""

import tempfile
import time
import warnings
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
        steps: Seconds that each training step took in it.
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


class Clock(Callback):
    """First and last among the callbacks: the processor seconds of each step, and of its forward and backward pass.

    Attributes:
        steps: Seconds of each whole step, callbacks included.
        gradients: Seconds up to the optimizer's step.
        operations: By operator of torch's, how often it ran in the step that was profiled.
    """

    def __init__(self, profiled_step: int | None = None) -> None:
        self.steps: list[float] = []
        self.gradients: list[float] = []
        self.operations: dict[str, int] = {}
        self.last = _Last(self)
        self._profiled_step = profiled_step
        self._profile: profile | None = None
        self._start = 0.0

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Start."""
        if trainer.global_step == self._profiled_step:
            self._profile = profile(activities=[ProfilerActivity.CPU], acc_events=True)
            self._profile.__enter__()
        self._start = time.thread_time()

    def on_before_optimizer_step(self, *_: Any) -> None:
        """Note the time of the gradient."""
        self.gradients.append(time.thread_time() - self._start)

    def stop(self) -> None:
        """Note the time of the step."""
        self.steps.append(time.thread_time() - self._start)
        if self._profile is not None:
            self._profile.__exit__(None, None, None)
            rows = self._profile.key_averages()
            self.operations = {row.key: row.count for row in rows if row.key.startswith("aten::")}
            self._profile = None


class _Last(Callback):
    """Stops a `Clock`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_train_batch_end(self, *_: Any) -> None:
        """Stop."""
        self._clock.stop()


def fit(
    model: LightningModule,
    data: LightningDataModule,
    callbacks: Sequence[Callback],
    steps: int,
    profiled_step: int | None = None,
) -> Clock:
    """Train for some steps with a CSVLogger, as anybody would, but without validation and progress bar.

    Args:
        model: The model; it goes on from where it is.
        data: Its data.
        callbacks: Monitors.
        steps: How many steps.
        profiled_step: The step whose operations are counted.

    Returns:
        What was measured.
    """
    clock = Clock(profiled_step)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Lightning, about workers and intervals: not the benchmark's subject
        trainer = Trainer(
            max_steps=steps,
            accelerator="cpu",
            devices=1,
            logger=CSVLogger(folder),
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
