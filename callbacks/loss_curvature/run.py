"""What a `LossCurvatureMonitor` asks of the run around it: whether it can measure there, and what an event needs."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from lit_gelu.callbacks.loss_curvature.batches import ProbePart
from lit_gelu.callbacks.trainer import shards_parameters
from lit_gelu.curvature.loss import ParameterLayout
from lit_gelu.curvature.probe.loss_probe import LossProbe
from lit_gelu.curvature.probe.training_loss import loss_function
from lit_gelu.curvature.settings import LossSettings
from lit_gelu.errors import UnsupportedRunError

_OVERFLOWS = "in which second derivatives overflow"
_ROUNDS = "with 8 significant bits: products with the matrix and slopes are off by about 1 %"


@dataclass(frozen=True)
class PendingEvent:
    """What was found as the batch began whose step is to be measured."""

    kept: ProbePart | None  # what `ProbeBatches.keep` kept of the batch
    before: Tensor | None  # the parameters that the optimizer is about to change, if they are needed
    start: float  # when the batch began, in seconds
    parameters: tuple[nn.Parameter, ...]  # the module's then: a swap may bring and take some
    rates: Mapping[str, float]  # as `learning_rates` gave them then: a schedule may change them before the event


@contextmanager
def loggers_off(trainer: Trainer) -> Iterator[None]:
    """Let a training step that writes to ``self.logger`` write to nowhere."""
    loggers = trainer.loggers
    trainer.loggers = [DummyLogger()]
    try:
        yield
    finally:
        trainer.loggers = loggers


def learning_rates(optimizers: Iterable[Optimizer]) -> dict[str, float]:
    """Return the first positive rate of the parameter groups, to compare with ``2 / eigenvalue``, and the largest."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    rates = [float(group["lr"]) for group in groups if group.get("lr") is not None]
    if not rates:
        return {}
    first = next((rate for rate in rates if rate > 0), 0.0)
    return {"learning_rate": first} | ({"largest_learning_rate": max(rates)} if len(rates) > 1 else {})


def now(trainer: Trainer) -> float:
    """Return the time, in seconds, when the device has done what it was told."""
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
    """Return the loss as a function of the parameters, for one event."""
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


def refuse_run(trainer: Trainer, pl_module: LightningModule, settings: LossSettings) -> None:
    """Refuse, before it starts, a run that shards parameters, or whose loss cannot be computed on the side."""
    strategy = trainer.strategy
    if shards_parameters(trainer) or strategy.restore_checkpoint_after_setup:
        raise UnsupportedRunError(
            f"LossCurvatureMonitor({', '.join(settings.quantities)}) does not work with {type(strategy).__name__}: no "
            "rank has whole parameters, and a pass through a part of the model does not gather them. Use DDP or one "
            "device, or measure a checkpoint of this run afterwards on one device."
        )
    loss_function(pl_module)  # refuses what has none


def refuse_parameters(pl_module: LightningModule) -> None:
    """Refuse, when the module has built its layers, one without parameters that can be measured."""
    # Not in `setup`: Lightning calls that of callbacks before the module's own `setup` and `configure_model`.
    parameters = dict(pl_module.named_parameters())
    if not has_lazy_parameters(parameters.values()):  # the first training step makes those
        ParameterLayout(parameters)


def has_lazy_parameters(parameters: Iterable[nn.Parameter]) -> bool:
    """Return whether a layer, such as ``LazyLinear``, waits for its first input to make its parameters."""
    return any(map(is_lazy, parameters))


def warn_of_half_precision(pl_module: LightningModule) -> None:
    """Warn of float16 and bfloat16 parameters, and say what is inexact."""
    for dtype, mixed, trouble in ((torch.float16, "16-mixed", _OVERFLOWS), (torch.bfloat16, "bf16-mixed", _ROUNDS)):
        half = [name for name, parameter in pl_module.named_parameters() if parameter.dtype == dtype]
        if half:
            rank_zero_warn(
                f"LossCurvatureMonitor: {len(half)} parameters are {str(dtype)[6:]} ({half[0]}, ...), {trouble}. Keep "
                f"the parameters in float32, e.g. with Trainer(precision={mixed!r})."
            )
