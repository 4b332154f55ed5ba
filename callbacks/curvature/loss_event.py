"""What surrounds an event of a `LossCurvatureMonitor`."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.plugins.precision import MixedPrecision

from lit_gelu.callbacks.curvature.loss_batches import ProbePart
from lit_gelu.callbacks.curvature.loss_settings import LossSettings
from lit_gelu.callbacks.curvature.loss_state import Step
from lit_gelu.curvature.probe.batch import repeat_examples, take_examples
from lit_gelu.curvature.probe.loss_probe import LossProbe


@dataclass(frozen=True)
class PendingEvent:
    """What was found as the batch began whose step is to be measured.

    Attributes:
        kept: What `ProbeBatches.keep` kept of the batch.
        step: What the optimizer is about to change, if that is needed.
        start: When the batch began, in seconds.
    """

    kept: ProbePart | None
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


def probe_of(
    trainer: Trainer,
    pl_module: LightningModule,
    parts: Sequence[ProbePart],
    settings: LossSettings,
    event: int,
    batch_idx: int,
    *,
    autocast: bool,
) -> LossProbe:
    """Return the loss as a function of the parameters, for one event.

    Args:
        trainer: The Trainer.
        pl_module: Its module.
        parts: What to probe with.
        settings: Say the mode and the seed.
        event: The event's number, which masks depend on besides the seed and the rank.
        batch_idx: The number of the batch at hand.
        autocast: Whether to compute in the Trainer's mixed precision.

    Returns:
        The probe, to be entered.
    """
    plugin = trainer.precision_plugin
    mixed = isinstance(plugin, MixedPrecision) and not autocast
    examples = {id(part.batch): part.examples for part in parts}
    return LossProbe(
        pl_module,
        [part.batch for part in parts],
        mode=settings.mode,
        seed=(settings.seed * 1_000_003 + event) * 65_537 + trainer.global_rank,
        batch_idx=batch_idx,
        precision=None if mixed else plugin.forward_context,
        count=lambda batch: examples[id(batch)],  # of these very objects: no part of them is taken
    )


def sums_over_examples(probe_of_parts: Callable[[Sequence[ProbePart]], LossProbe], part: ProbePart) -> bool:
    """Return whether a loss doubles when every example comes twice, as a sum does and a mean does not.

    Args:
        probe_of_parts: Makes a probe of some parts.
        part: Some examples; half of them are used.

    Returns:
        Whether it does; fewer than four are taken for no sum (batch normalisation needs two).
    """
    if part.examples < 4:
        return False
    count = part.examples // 2
    once = take_examples(part.batch, count)
    parts = [ProbePart(once, count), ProbePart(repeat_examples(once), 2 * count)]
    with probe_of_parts(parts) as probe:
        single, double = (closure().item() for closure in probe.closures)
    return 1.5 * abs(single) < abs(double) < 3 * abs(single)
