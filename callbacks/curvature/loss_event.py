"""What surrounds an event of a `LossCurvatureMonitor`."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers.logger import DummyLogger

from lit_gelu.callbacks.curvature.loss_state import Step


@dataclass(frozen=True)
class PendingEvent:
    """What was found as the batch began whose step is to be measured.

    Attributes:
        batch: The batch, in containers of its own.
        step: What the optimizer is about to change, if that is needed.
        start: When the batch began, in seconds.
    """

    batch: Any
    step: Step | None
    start: float


@contextmanager
def loggers_off(trainer: Trainer) -> Iterator[None]:
    """Let a training step that writes to ``self.logger`` write to nowhere.

    Args:
        trainer: The Trainer.

    Yields:
        Nothing.
    """
    loggers = trainer.loggers
    trainer.loggers = [DummyLogger()]
    try:
        yield
    finally:
        trainer.loggers = loggers


def now(trainer: Trainer) -> float:
    """Return the time when the device has done what it was told.

    Args:
        trainer: The Trainer.

    Returns:
        Seconds, from an arbitrary origin.
    """
    device = trainer.strategy.root_device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
