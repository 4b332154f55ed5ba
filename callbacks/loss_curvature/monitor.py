"""`LossCurvatureMonitor`: logs, during training, how curved the loss is."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from typing_extensions import override

from lit_gelu.arguments import name_of, names_of
from lit_gelu.callbacks.loss_curvature.run import (
    Fraction,
    PendingEvent,
    ProbeBatches,
    has_lazy_parameters,
    learning_rates,
    loggers_off,
    now,
    probe_of,
    refuse_parameters,
    refuse_run,
    warn_of_half_precision,
)
from lit_gelu.callbacks.measurement_schedule import MeasurementSchedule
from lit_gelu.callbacks.trainer import (
    log_figure,
    log_figures,
    log_texts,
    logged_step,
    publish_figures,
    refuse_mixed_packages,
    require_logger,
)
from lit_gelu.curvature.loss import (
    ParameterLayout,
    SpectralDensity,
)
from lit_gelu.curvature.loss_measurement import Eigenvectors, LossMeasurement, measure_loss
from lit_gelu.curvature.plots import density_figure
from lit_gelu.curvature.ranks import sum_over_ranks
from lit_gelu.curvature.settings import LossSettings
from lit_gelu.display import ShownFigures
from lit_gelu.errors import UnsupportedRunError
from lit_gelu.extras import MissingExtraError


class LossCurvatureMonitor(Callback):
    """Logs ``curvature/loss/<name>`` at chosen optimizer steps, and leaves training bitwise as it is without.

    ``top_eigenvalue`` and ``smallest_eigenvalue`` of the Hessian, with ``.._residual`` and ``.._converged``; ``trace``,
    its standard error, its parts by layer and the Frobenius norm; ``spectral_density``, a figure; ``directional``,
    along the step that the optimizer took: u'Hu / u'u, g'u and u'Hu / (-2 g'u), with the Hessian and the gradient
    before it. docs/curvature.md has the formula of each figure and how to read it. Besides: ``probe_loss``,
    ``gradient_norm``, ``products``, ``examples``, ``seconds``, ``interval``, ``cost_in_training_batches``, and the
    step's ``learning_rate``.

    The loss is the module's ``curvature_loss(batch)`` if it defines that, else what its ``training_step`` returns, on
    the probe; see `lit_gelu.curvature.LossProbe`: everything is left as it was. It is measured after the optimizer
    step, at its parameters; along the update, seen from the parameters before it. Under DDP figures are those of the
    union of all ranks' batches; under accumulation the step's last micro-batch is at hand. If the loss or a product is
    not finite, ``training_step`` returns ``None``, or memory runs out, there is a warning and nothing is logged.

    Args:
        quantities: ``"top_eigenvalue"``, ``"smallest_eigenvalue"``, ``"trace"``, ``"spectral_density"``,
            ``"directional"``; one or several.
        operator: "hessian", or "gauss_newton" for the generalised Gauss-Newton matrix, which has no negative
            eigenvalues; the loss must then be one call of torch's cross_entropy, mse_loss or
            binary_cross_entropy_with_logits.
        every_n_steps: Optimizer steps between two events; 500 if nothing else is given.
        every_n_epochs: Epochs between two events, each at the epoch's last step.
        at_steps: The steps to measure, numbered from 0.
        probe: "fresh": the batch at hand, as it was before ``training_step``; "fixed": the first one that this
            fit measures; or a list of batches as the training loader gives them: they go once through the module's
            ``on_before_batch_transfer`` and ``on_after_batch_transfer``.
        fraction: Which share of each batch to use: its first examples, at least two. "auto" is an eighth, and at least
            32 examples, or the whole batch with a warning if it has fewer. ``None`` means all, and is needed for
            batches that cannot be cut: a ``PackedSequence``, objects of your own. Of a loss that is a sum over examples
            the figures are those of the part's sum.
        samples: How many examples of each batch to use instead.
        mode: "train": the module's parts in the mode they are in, so dropout and batch statistics are those of
            training; "eval": all in evaluation.
        autocast: Whether to compute in the Trainer's mixed precision; by default in that of the parameters.
        seed: Of all random vectors and masks, together with the number of the event and of the rank.
        lanczos_steps: Products for the eigenvalues at the first event.
        warm_steps: Products for the eigenvalues at later events, at most; 2 to 5 are usual on a fresh probe.
        accuracy: At which relative error of the eigenvalues, as estimated by a Gauss-Radau rule, later events take
            no more products (docs/curvature.md says how often it was right). ``None``: they take ``warm_steps``.
        trace_probes: Random vectors for the trace, a product each.
        trace_accuracy: More are taken until the trace's standard error is at most this share of it. ``None``: exactly
            ``trace_probes`` are.
        max_trace_probes: The most; if they do not suffice there is a warning, the first time.
        density_steps: Products a run for the spectral density.
        density_runs: Its runs.
        save_vectors_up_to: Eigenvectors are kept in checkpoints if they have at most so many elements. Without them a
            resumed run's first event starts anew, with ``lanczos_steps``.
        name: Figures are logged as ``curvature/<name>/...``; several monitors in one Trainer need several names.

    Attributes:
        latest: The figures of the last event, by name, on every rank.
        spectrum: The last spectral density.

    Raises:
        ArgumentError: If an argument is not accepted; at the start of a fit, if the module's loss cannot be computed on
            the side of its training; at an event, if no part can be taken of the batch, if ``training_step`` writes to
            parameters that are trained, or the model has reentrant checkpoints.
        UnsupportedRunError: At the start of a fit, if the Trainer has no logger, or the strategy shards parameters.

    Example:
        >>> monitor = LossCurvatureMonitor(["top_eigenvalue", "trace"], every_n_steps=200)
        >>> monitor.latest
        {}
    """

    def __init__(
        self,
        quantities: str | Sequence[str] = ("top_eigenvalue",),
        operator: Literal["hessian", "gauss_newton"] = "hessian",
        *,
        every_n_steps: int | None = None,
        every_n_epochs: int | None = None,
        at_steps: Sequence[int] | None = None,
        probe: Literal["fresh", "fixed"] | Sequence[Any] = "fresh",
        fraction: Fraction = "auto",
        samples: int | None = None,
        mode: Literal["train", "eval"] = "train",
        autocast: bool = False,
        seed: int = 0,
        lanczos_steps: int = 16,
        warm_steps: int = 12,
        accuracy: float | None = 0.02,
        trace_probes: int = 6,
        trace_accuracy: float | None = 0.1,
        max_trace_probes: int = 32,
        density_steps: int = 40,
        density_runs: int = 1,
        save_vectors_up_to: int = 10_000_000,
        name: str = "loss",
    ) -> None:
        self.settings = LossSettings(
            quantities=names_of("quantities", quantities),
            operator=operator,
            lanczos_steps=lanczos_steps,
            warm_steps=warm_steps,
            accuracy=accuracy,
            trace_probes=trace_probes,
            trace_accuracy=trace_accuracy,
            max_trace_probes=max_trace_probes,
            density_steps=density_steps,
            density_runs=density_runs,
            mode=mode,
            seed=seed,
        )
        self.schedule = MeasurementSchedule(every_n_steps, every_n_epochs, at_steps, default=500)
        self.batches = ProbeBatches(probe, fraction, samples, seed)
        self.autocast = autocast
        self.save_vectors_up_to = save_vectors_up_to
        self.name = name_of("name", name)
        self.latest: dict[str, float] = ShownFigures()
        self.spectrum: SpectralDensity | None = None
        self._vectors: Eigenvectors = {}
        self._pending: PendingEvent | None = None
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
        if stage == "fit":
            require_logger(trainer, type(self).__name__)
            refuse_run(trainer, pl_module, self.settings)
            self.latest, self.spectrum, self._pending, self._reported = ShownFigures(), None, None, False
            self._warned.clear()
            if trainer.global_step == 0:  # a checkpoint is loaded later
                self.schedule.reset()
                self.batches.reset()
                self._vectors = {}

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse a module without parameters to measure; warn if the run is too short, or not precise enough."""
        refuse_parameters(pl_module)
        warn_of_half_precision(pl_module)
        self.schedule.warn_if_never_due(trainer, type(self).__name__)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """If this batch ends with an optimizer step that is to be measured, keep what the step will change."""
        self._pending = None
        if not self.schedule.is_due(trainer) or trainer.fit_loop._should_accumulate():
            return
        parameters = dict(pl_module.named_parameters())
        before = None
        if "directional" in self.settings.quantities and has_lazy_parameters(parameters.values()):
            self._warn_once(
                "directional is left out at the first step: layers such as LazyLinear have no parameters before it. "
                "Call the module once in its setup() to measure this step, too."
            )
        elif "directional" in self.settings.quantities:
            before = ParameterLayout(parameters).values()
        rates = learning_rates(trainer.optimizers)
        self._pending = PendingEvent(self.batches.keep(batch), before, now(trainer), tuple(parameters.values()), rates)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure and log."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        if pending.before is not None and [*map(id, pending.parameters)] != [*map(id, pl_module.parameters())]:
            self._warn_once(
                "directional is left out at steps amid which a swap brings or takes parameters: the difference would "
                "not be the optimizer's update."
            )
            pending = replace(pending, before=None)
        start = now(trainer)
        try:
            with loggers_off(trainer):
                measured, examples = self._measure(trainer, pl_module, pending, batch_idx)
        except (UnsupportedRunError, torch.OutOfMemoryError) as error:
            reason = str(error)
            if isinstance(error, torch.OutOfMemoryError):
                if trainer.world_size > 1:
                    raise  # the other ranks wait for this one: there is no going on together
                reason = "Memory ran out: give fewer samples=."
            self._vectors.clear()
            self._warn_once(
                f"nothing is logged at step {logged_step(trainer)}, and at others like it. {reason}", reason
            )
            self.schedule.record(trainer)
            return
        few = self.batches.few(examples * trainer.world_size)
        for sentence in [*measured.left_out, *([few] if few else [])]:
            self._warn_once(sentence)
        seconds = now(trainer) - start
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
        return {
            "schedule": self.schedule.state_dict(),
            "vectors": {
                name: vector.cpu()
                for name, vector in self._vectors.items()
                if vector.numel() <= self.save_vectors_up_to
            },
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.schedule.load_state_dict(state_dict["schedule"])
        self._vectors = dict(state_dict["vectors"])

    def _measure(
        self, trainer: Trainer, pl_module: LightningModule, pending: PendingEvent, batch_idx: int
    ) -> tuple[LossMeasurement, int]:
        """Return the figures and the number of examples they are from."""
        parts, events = self.batches.take(trainer, pending.kept), self.schedule.events
        with probe_of(trainer, pl_module, parts, self.settings, events, batch_idx, autocast=self.autocast) as probe:
            measured = measure_loss(
                probe,
                self.settings,
                self._vectors,
                event=events,
                before=pending.before,
                reduce=sum_over_ranks if trainer.world_size > 1 else None,
            )
            return measured, sum(probe.samples)

    def _warn_once(self, sentence: str, key: str = "") -> None:
        """Warn of what will be the same at every event, known by a key or by the sentence itself."""
        if (key or sentence) not in self._warned:
            self._warned.add(key or sentence)
            rank_zero_warn(f"LossCurvatureMonitor: {sentence}")

    def _log(self, trainer: Trainer, figures: dict[tuple[str, ...], float], measured: LossMeasurement) -> None:
        """Write to the loggers, and say once how products are computed."""
        prefix = ("curvature", self.name)
        named = {(*prefix, *path): value for path, value in figures.items()}
        log_figures(trainer, named)
        publish_figures(trainer, named)
        if measured.spectrum is not None:
            title = f"{self.settings.operator} of the loss, step {logged_step(trainer)}"
            try:
                log_figure(trainer, (*prefix, "spectral_density"), density_figure(measured.spectrum, title))
            except MissingExtraError as error:
                self._warn_once(f"the picture of the spectral density is left out. {error}")
        if not self._reported:
            self._reported = True
            rank_zero_info(
                f"LossCurvatureMonitor: {self.settings.operator} of the loss on {figures['examples',]:.0f} examples, "
                f"mode {self.settings.mode!r}. {measured.note}".rstrip()
            )
            texts = {"operator": self.settings.operator, "mode": self.settings.mode}
            log_texts(trainer, {(*prefix, name): text for name, text in texts.items()})
