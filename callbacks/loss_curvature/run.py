"""What a `LossCurvatureMonitor` asks of the run around it: whether it can measure there, and with which batches."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from lit_gelu.callbacks.trainer import shards_parameters
from lit_gelu.curvature.loss import ParameterLayout
from lit_gelu.curvature.probe.examples import check_part, clone_batch, part_of, part_size
from lit_gelu.curvature.probe.loss_probe import LossProbe
from lit_gelu.curvature.probe.state import ModuleState, seed_random_state
from lit_gelu.curvature.probe.training_loss import loss_function
from lit_gelu.curvature.settings import LossSettings
from lit_gelu.errors import ArgumentError, UnsupportedRunError
from lit_gelu.sandbox import isolated_generators

DEFAULT_FRACTION = 1 / 8
LEAST_EXAMPLES = 32
"""Of the default part: with 4 examples the top eigenvalue of one net differed from probe to probe by 135 % (standard
deviation), with 16 by 50 %, with 32 by 36 %, with 64 by 25 %."""

Fraction = float | Literal["auto"] | None


@dataclass(frozen=True)
class ProbePart:
    """A batch, or a part of one, that the loss is probed with."""

    batch: Any  # what ``training_step`` takes
    examples: int  # how many examples it has, told from the whole batch; 1 where that cannot be told


class ProbeBatches:
    """The batch at hand ("fresh"), the first one of the run ("fixed"), or given ones; whole, or a part."""

    def __init__(self, source: str | Sequence[Any], fraction: Fraction, samples: int | None, seed: int = 0) -> None:
        self.is_default = fraction == "auto" and samples is None
        if isinstance(fraction, str):
            if fraction != "auto":
                raise ArgumentError(
                    f"fraction={fraction!r} is not accepted. Give a share of the batch, 'auto', or None for all of it."
                )
            fraction = None if samples is not None else DEFAULT_FRACTION
        check_part(fraction, samples)
        if isinstance(source, str):
            accepted = source in {"fresh", "fixed"}
        else:
            accepted = isinstance(source, (list, tuple)) and len(source) > 0
        if not accepted:
            raise ArgumentError(
                f"probe={source!r} is not accepted. Give 'fresh' (the batch at hand), 'fixed' (the first one of the "
                "run), or a list of batches as the training loader gives them."
            )
        self.source = source
        self.fraction, self.samples, self.seed = fraction, samples, seed
        self.reset()

    def reset(self) -> None:
        """Forget the batches of an earlier run."""
        self._fixed: ProbePart | None = None
        self._source_parts: list[ProbePart] | None = None

    def keep(self, batch: Any) -> ProbePart | None:
        """Return what is needed of a batch as its step ends, in tensors of its own; ``None`` if another is probed."""
        if self.source == "fresh" or (self.source == "fixed" and self._fixed is None):
            return self._part(batch)
        return None

    def take(self, trainer: Trainer, kept: ProbePart | None) -> list[ProbePart]:
        """Return the batches for one event, on the device, given what `keep` returned."""
        if self.source == "fixed" and self._fixed is None:
            self._fixed = kept
        part = self._fixed or kept
        if part is None and self._source_parts is None:
            self._source_parts = self._as_training_gets_them(trainer)
        return [part] if part is not None else self._source_parts or []

    def few(self, examples: int) -> str | None:
        """Return what to say of a default probe that is smaller than it should be; ``None`` if it is not."""
        if not self.is_default or examples >= LEAST_EXAMPLES:
            return None
        return (
            f"the whole batch is probed, and has fewer than {LEAST_EXAMPLES} examples: figures of so few differ much "
            "from batch to batch. Give probe=[batch, ...] with more of them, or fraction=None if this is what you want "
            "(as where each example holds many targets)."
        )

    def _part(self, batch: Any) -> ProbePart:
        """Return the part to be probed, with tensors of its own: it does not hold the whole in memory."""
        least = LEAST_EXAMPLES if self.is_default else 2
        part = clone_batch(part_of(batch, self.fraction, self.samples, least))
        return ProbePart(part, part_size(batch, self.fraction, self.samples, least) or 1)

    def _as_training_gets_them(self, trainer: Trainer) -> list[ProbePart]:
        """Return parts of the given batches after all hooks that a training batch goes through; those run once."""
        module = trainer.lightning_module
        state = ModuleState(module)
        parts = []
        with ExitStack() as stack:
            stack.callback(state.restore)
            stack.enter_context(isolated_generators(state.devices))
            seed_random_state(self.seed + trainer.global_rank, state.devices)
            for source_batch in self.source:
                batch = trainer.precision_plugin.convert_input(clone_batch(source_batch))
                batch = trainer.strategy.batch_to_device(module._on_before_batch_transfer(batch))
                parts.append(self._part(batch))
        return parts


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
