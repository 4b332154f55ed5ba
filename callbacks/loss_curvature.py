"""`LossCurvatureMonitor`: logs, during training, how curved the loss is."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from typing_extensions import override

from lit_gelu.arguments import is_number, name_of, names_of
from lit_gelu.callbacks.measurement_schedule import MeasurementSchedule
from lit_gelu.callbacks.trainer import (
    log_figure,
    log_figures,
    log_texts,
    logged_step,
    publish_figures,
    refuse_mixed_packages,
    require_logger,
    shards_parameters,
)
from lit_gelu.curvature.loss import ParameterLayout, SpectralDensity
from lit_gelu.curvature.loss.preconditioner import preconditioner_of
from lit_gelu.curvature.loss_measurement import Eigenvectors, LossMeasurement, density_figure, measure_loss
from lit_gelu.curvature.probe.batches import clone_batch, part_size, take_examples
from lit_gelu.curvature.probe.loss_probe import LossProbe, loss_function
from lit_gelu.curvature.probe.state import ModuleState, seed_random_state
from lit_gelu.curvature.ranks import sum_over_ranks
from lit_gelu.curvature.settings import OF_OPTIMIZER, LossSettings, ProductBudget
from lit_gelu.display import ShownFigures
from lit_gelu.errors import ArgumentError, UnsupportedRunError
from lit_gelu.extras import MissingExtraError
from lit_gelu.sandbox import isolated_generators

DEFAULT_FRACTION = 1 / 8
LEAST_EXAMPLES = 32
"""Of the default part: with 4 examples the top eigenvalue of one net differed from probe to probe by 135 % (standard
deviation), with 16 by 50 %, with 32 by 36 %, with 64 by 25 %."""

SAVED_ELEMENTS = 10_000_000
"""Larger eigenvectors are not kept in checkpoints: the first event of a resumed run starts without them."""

Fraction = float | Literal["auto"] | None


ProbePart = tuple[Any, int]
"""A batch, or a part of one, as ``training_step`` takes it, and how many examples it has; 1 where nobody can tell."""


class ProbeBatches:
    """The batch at hand ("fresh"), the first one of the run ("fixed"), or given ones; whole, or a part."""

    def __init__(self, source: str | Sequence[Any], fraction: Fraction) -> None:
        is_share = is_number(fraction) and 0 < float(fraction or 0) <= 1
        if not (fraction is None or fraction == "auto" or is_share):
            raise ArgumentError(
                f"{fraction=} is not accepted. Give a share of the batch, above 0 and up to 1, 'auto', or None for all."
            )
        fits = source in {"fresh", "fixed"} if isinstance(source, str) else isinstance(source, (list, tuple)) and source
        if not fits:
            raise ArgumentError(
                f"probe={source!r} is not accepted. Give 'fresh' (the batch at hand), 'fixed' (the first one of the "
                "run), or a list of batches as the training loader gives them."
            )
        self.source = source
        self.is_default = fraction == "auto"
        self.fraction = DEFAULT_FRACTION if fraction == "auto" else fraction
        self.reset()

    def reset(self) -> None:
        """Forget the batches of an earlier run."""
        self._parts: list[ProbePart] = []  # that are probed at every event

    def keep(self, batch: Any) -> ProbePart | None:
        """Return a copy of the part of a batch to probe after its step; ``None`` if other batches are probed."""
        return self._part(batch) if isinstance(self.source, str) and not self._parts else None

    def take(self, trainer: Trainer, kept: ProbePart | None, seed: int) -> list[ProbePart]:
        """Return the batches for one event, on the device, given what `keep` returned."""
        if self.source == "fresh":
            return [] if kept is None else [kept]
        if not self._parts and kept is not None:
            self._parts = [kept]
        if self._parts:
            return self._parts
        # Given ones, after all hooks that a training batch goes through; those run once.
        module = trainer.lightning_module
        state = ModuleState(module)
        parts = []
        with ExitStack() as stack:
            stack.callback(state.restore)
            stack.enter_context(isolated_generators(state.devices))
            seed_random_state(seed + trainer.global_rank, state.devices)
            for source_batch in self.source:
                batch = trainer.precision_plugin.convert_input(clone_batch(source_batch))
                batch = trainer.strategy.batch_to_device(module._on_before_batch_transfer(batch))
                parts.append(self._part(batch))
        self._parts = parts
        return parts

    def _part(self, batch: Any) -> ProbePart:
        """Return the part to be probed, with tensors of its own: it does not hold the whole in memory."""
        size = part_size(batch, self.fraction, LEAST_EXAMPLES if self.is_default else 2) or 1
        return clone_batch(batch if self.fraction is None else take_examples(batch, size)), size


@dataclass(frozen=True)
class _PendingEvent:
    """What was found as the batch began whose step is to be measured."""

    kept: ProbePart | None  # what `ProbeBatches.keep` kept of the batch
    before: Tensor | None  # the parameters that the optimizer is about to change, if they are needed
    start: float  # when the batch began, in seconds
    parameters: tuple[nn.Parameter, ...]  # the module's then: a swap may bring and take some
    rates: Mapping[str, float]  # as `learning_rates` gave them then: a schedule may change them before the event


class LossCurvatureMonitor(Callback):
    """Logs ``curvature/loss/<name>`` at chosen optimizer steps, and leaves training bitwise as it is without.

    ``top_eigenvalue`` and ``smallest_eigenvalue`` of the Hessian, with ``.._residual`` and ``.._converged``; ``trace``,
    its standard error, its parts by layer and the Frobenius norm; ``spectral_density``, a figure; ``directional``,
    along the step that the optimizer took: u'Hu / u'u, g'u and u'Hu / (-2 g'u), with the Hessian and the gradient
    before it; ``preconditioned_sharpness`` and ``batch_sharpness``, beside the optimizer's limit, ``.._limit``.
    docs/curvature.md has the formula of each figure, says how to read it, and what else is logged.

    The loss is the module's ``curvature_loss(batch)`` if it defines that, else what its ``training_step`` returns, on
    the probe, without autocast; see `lit_gelu.curvature.LossProbe`. It is measured after the optimizer step. Under DDP
    figures are those of the union of all ranks' batches; under accumulation the step's last micro-batch is at hand. If
    the loss or a product is not finite, or memory runs out, there is a warning and nothing is logged.

    Args:
        quantities: ``"top_eigenvalue"``, ``"smallest_eigenvalue"``, ``"trace"``, ``"spectral_density"``,
            ``"directional"``, ``"preconditioned_sharpness"``, ``"batch_sharpness"``; one or several.
        every_n_steps: Optimizer steps between two events; 500 if nothing else is given.
        every_n_epochs: Epochs between two events, each at the epoch's last step.
        at_steps: The steps to measure, numbered from 0.
        probe: "fresh": the batch at hand, as it was before ``training_step``; "fixed": the first one that this
            fit measures; or a list of batches as the training loader gives them: they go once through the module's
            ``on_before_batch_transfer`` and ``on_after_batch_transfer``.
        fraction: Which share of each batch to use: its first examples, at least two. "auto" is an eighth, and at least
            32 examples, or the whole batch with a warning if it has fewer. ``None`` means all, and is needed for
            batches that cannot be cut: a ``PackedSequence``, objects of your own.
        mode: "train": the module's parts in the mode they are in, so dropout and batch statistics are those of
            training; "eval": all in evaluation.
        seed: Of all random vectors and masks, together with the number of the event and of the rank.
        budget: How many products with the matrix to take; by default `ProductBudget()`.
        name: Figures are logged as ``curvature/<name>/...``; several monitors in one Trainer need several names.

    Attributes:
        latest: The figures of the last event, by name, on every rank.
        spectrum: The last spectral density.

    Raises:
        ArgumentError: If an argument is not accepted; at the start of a fit, if the module's loss cannot be computed
            apart from its training step; at an event, if no part can be taken of the batch, if ``training_step`` writes
            to parameters that are trained, or the model has reentrant checkpoints.
        UnsupportedRunError: At the start of a fit, if the Trainer has no logger, or the strategy shards parameters.

    Example:
        >>> monitor = LossCurvatureMonitor(["top_eigenvalue", "trace"], every_n_steps=200)
        >>> monitor.latest
        {}
    """

    def __init__(
        self,
        quantities: str | Sequence[str] = ("top_eigenvalue",),
        *,
        every_n_steps: int | None = None,
        every_n_epochs: int | None = None,
        at_steps: Sequence[int] | None = None,
        probe: Literal["fresh", "fixed"] | Sequence[Any] = "fresh",
        fraction: Fraction = "auto",
        mode: Literal["train", "eval"] = "train",
        seed: int = 0,
        budget: ProductBudget | None = None,
        name: str = "loss",
    ) -> None:
        self.settings = LossSettings(
            quantities=names_of("quantities", quantities), mode=mode, seed=seed, budget=budget or ProductBudget()
        )
        self.schedule = MeasurementSchedule(every_n_steps, every_n_epochs, at_steps, default=500)
        self.batches = ProbeBatches(probe, fraction)
        self.name = name_of("name", name)
        self.latest: dict[str, float] = ShownFigures()
        self.spectrum: SpectralDensity | None = None
        self._vectors: Eigenvectors = {}
        self._pending: _PendingEvent | None = None
        self._reported = False
        self._warned: set[str] = set()

    @property
    @override
    def state_key(self) -> str:
        """Under which name a checkpoint holds the state."""
        return self._generate_state_key(name=self.name)

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a run that cannot be measured; forget another run, unless this Trainer continues it."""
        refuse_mixed_packages(trainer, pl_module)
        if stage != "fit":
            return
        require_logger(trainer, type(self).__name__)
        strategy = trainer.strategy
        if shards_parameters(trainer) or strategy.restore_checkpoint_after_setup:
            raise UnsupportedRunError(
                f"LossCurvatureMonitor does not work with {type(strategy).__name__}: no rank has whole parameters, and "
                "a pass through a part of the model does not gather them. Use DDP or one device, or measure a "
                "checkpoint of this run afterwards on one device."
            )
        loss_function(pl_module)  # refuses what has none
        self.latest, self.spectrum, self._pending, self._reported = ShownFigures(), None, None, False
        self._warned.clear()
        if trainer.global_step == 0:  # a new fit, or a resumed one, whose checkpoint is loaded later
            self.schedule.reset()
            self.batches.reset()
            self._vectors = {}

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse a module without parameters to measure; warn if the run is too short."""
        # Not in `setup`: Lightning calls that of callbacks before the module's own `setup` and `configure_model`.
        parameters = dict(pl_module.named_parameters())
        if not any(map(is_lazy, parameters.values())):  # the first training step makes those
            ParameterLayout(parameters)
        self.schedule.warn_if_never_due(trainer, type(self).__name__)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """If this batch ends with an optimizer step that is to be measured, keep what the step will change."""
        self._pending = None
        if not self.schedule.is_due(trainer) or trainer.fit_loop._should_accumulate():
            return
        parameters = dict(pl_module.named_parameters())
        before = None
        if "directional" in self.settings.quantities and not any(map(is_lazy, parameters.values())):
            before = ParameterLayout(parameters).values()
        rates = learning_rates(trainer.optimizers)
        kept = self.batches.keep(batch)
        self._pending = _PendingEvent(kept, before, _now(trainer), tuple(parameters.values()), rates)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure and log."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        if [*map(id, pending.parameters)] != [*map(id, pl_module.parameters())]:  # a swap brought or took some
            pending = replace(pending, before=None)
        if pending.before is None and "directional" in self.settings.quantities:
            self._warn_once("directional is left out at steps in which parameters are made or replaced.")
        start = _now(trainer)
        loggers, trainer.loggers = trainer.loggers, [DummyLogger()]  # a training step may write to ``self.logger``
        try:
            measured, examples = self._measure(trainer, pl_module, pending, batch_idx)
        except (UnsupportedRunError, torch.OutOfMemoryError) as error:
            reason = str(error)
            if isinstance(error, torch.OutOfMemoryError):
                if trainer.world_size > 1:
                    raise  # the other ranks wait for this one: there is no going on together
                reason = "Memory ran out: give a smaller fraction=."
            self._vectors.clear()
            text = f"nothing is logged at step {logged_step(trainer)}, and at others like it. {reason}"
            self._warn_once(text, reason)
            self.schedule.record(trainer)
            return
        finally:
            trainer.loggers = loggers
        for sentence in measured.left_out:
            self._warn_once(sentence)
        if self.batches.is_default and examples * trainer.world_size < LEAST_EXAMPLES:
            self._warn_once(
                f"the whole batch is probed, and has fewer than {LEAST_EXAMPLES} examples: figures of so few differ "
                "much from batch to batch. Give probe=[batch, ...] with more of them, or fraction=None if this is what "
                "you want (as where each example holds many targets)."
            )
        seconds = _now(trainer) - start
        figures = measured.figures | {
            ("examples",): float(examples),
            ("seconds",): seconds,
            ("interval",): float(self.schedule.record(trainer)),
            ("cost_in_training_batches",): seconds / max(start - pending.start, 1e-9),
        }
        self.latest = ShownFigures({"/".join(path): value for path, value in figures.items()})
        self.spectrum = measured.spectrum or self.spectrum
        self._log(trainer, figures | {(name,): rate for name, rate in pending.rates.items()}, measured)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs for the same figures at the same steps; called on all ranks."""
        small = {name: vector for name, vector in self._vectors.items() if vector.numel() <= SAVED_ELEMENTS}
        return {
            "schedule": self.schedule.state_dict(),
            "vectors": {name: vector.cpu() for name, vector in small.items()},
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.schedule.load_state_dict(state_dict["schedule"])
        self._vectors = dict(state_dict["vectors"])

    def _measure(
        self, trainer: Trainer, pl_module: LightningModule, pending: _PendingEvent, batch_idx: int
    ) -> tuple[LossMeasurement, int]:
        settings, event, plugin = self.settings, self.schedule.events, trainer.precision_plugin
        batches, samples = zip(*self.batches.take(trainer, pending.kept, settings.seed), strict=True)
        probe = LossProbe(
            pl_module,
            batches,
            mode=settings.mode,
            seed=(settings.seed * 1_000_003 + event) * 65_537 + trainer.global_rank,
            batch_idx=batch_idx,
            precision=None if isinstance(plugin, MixedPrecision) else plugin.forward_context,
            samples=samples,
        )
        with probe:
            preconditioner, left_out = None, []
            if not set(OF_OPTIMIZER).isdisjoint(settings.quantities):
                try:
                    preconditioner = preconditioner_of(trainer.optimizers, ParameterLayout(probe.parameters))
                except UnsupportedRunError as error:
                    left_out = [str(error)]
            measured = measure_loss(
                probe,
                settings,
                self._vectors,
                event=event,
                before=pending.before,
                preconditioner=preconditioner,
                reduce=sum_over_ranks if trainer.world_size > 1 else None,
            )
            measured.left_out += left_out
        return measured, sum(samples)

    def _warn_once(self, sentence: str, key: str = "") -> None:
        """Warn of what will be the same at every event, known by a key or by the sentence itself."""
        if (key or sentence) not in self._warned:
            self._warned.add(key or sentence)
            rank_zero_warn(f"LossCurvatureMonitor: {sentence}")

    def _log(self, trainer: Trainer, figures: dict[tuple[str, ...], float], measured: LossMeasurement) -> None:
        prefix = ("curvature", self.name)
        named = {(*prefix, *path): value for path, value in figures.items()}
        log_figures(trainer, named)
        publish_figures(trainer, named)
        if measured.spectrum is not None:
            title = f"Hessian of the loss, step {logged_step(trainer)}"
            try:
                log_figure(trainer, (*prefix, "spectral_density"), density_figure(measured.spectrum, title))
            except MissingExtraError as error:
                self._warn_once(f"the picture of the spectral density is left out. {error}")
        if not self._reported:
            self._reported = True
            rank_zero_info(
                f"LossCurvatureMonitor: Hessian of the loss on {figures['examples',]:.0f} examples, "
                f"mode {self.settings.mode!r}. {measured.note}".rstrip()
            )
            log_texts(trainer, {(*prefix, "mode"): self.settings.mode})


def learning_rates(optimizers: Iterable[Optimizer]) -> dict[str, float]:
    """Return the first positive rate of the parameter groups, to compare with ``2 / eigenvalue``, and the largest."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    if not (rates := [float(group["lr"]) for group in groups if group.get("lr") is not None]):
        return {}
    first = next((rate for rate in rates if rate > 0), 0.0)
    return {"learning_rate": first} | ({"largest_learning_rate": max(rates)} if len(rates) > 1 else {})


def _now(trainer: Trainer) -> float:
    """Return the time, in seconds, when the device has done what it was told."""
    device = trainer.strategy.root_device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
