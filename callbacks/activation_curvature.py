"""`ActivationCurvatureMonitor`: logs, during training, what every activation is given and how curved it is there."""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from typing_extensions import override

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.arguments import name_of, names_of
from lit_gelu.callbacks.measurement_schedule import MeasurementSchedule
from lit_gelu.callbacks.trainer import (
    Path,
    as_batch,
    callbacks_of,
    is_logging_step,
    log_figures,
    logged_step,
    refuse_mixed_packages,
    require_logger,
    shards_parameters,
)
from lit_gelu.curvature.activation_measurement import ActivationMeasurement, ActivationSettings, Figures, Readout
from lit_gelu.display import ShownFigures
from lit_gelu.errors import ArgumentError, UnsupportedRunError
from lit_gelu.sandbox import input_sample_of
from lit_gelu.surgery import SwapReport

# So many wait for the next logging step, at most. Numbers of many become figures in a third of the time that they take
# one by one, since the step's own work has emptied the caches.
_MOST_EVENTS = 64
_GIVE_SAMPLE = "Give input_sample=, a batch for forward, or set the module's example_input_array"


@dataclass(frozen=True)
class _Event:
    """A measurement whose figures are on their way to the host."""

    source: ActivationMeasurement  # what measured, and can read the figures
    readout: Readout
    step: int
    interval: int
    seconds: float


class ActivationCurvatureMonitor(Callback):
    """Logs ``curvature/<site>/<statistic>`` for every activation, every so many optimizer steps.

    docs/curvature.md has the formulas of the statistics and how to read them; of ``share_dead``, see
    `lit_gelu.curvature.DeadUnitWindow`. With ``gaussian=True``, ``curvature/<site>/gaussian/<statistic>`` says what a
    normal pre-activation of the same mean and deviation would give.

    *Which sites.* The elementwise activations that `lit_gelu.surgery.find_sites` lists with the role "activation", by
    their names there; gates (tanh, sigmoid) only if ``include`` names them in full. With an input sample these are not
    modules alone, but calls of functions too (``F.gelu`` in a ``forward``), functions that a module holds, and single
    calls of a module (``relu#0``). A warning names a call that cannot be observed, and says why.

    *When.* At the steps at which Lightning itself logs with ``log_every_n_steps`` of the same value, at the end of
    epochs, or at chosen steps; of accumulated steps the first micro-batch. Figures carry the number of the step that
    was measured, and are written (and stand in ``latest``) when Lightning logs next, or the epoch ends.

    *What counts.* All calls of a site in the training step, outside of the backward pass, of all ranks together. There
    is no figure for a site that was not called, with a warning, nor where it is not defined (``mean_gate`` where
    f(0) != 0, ``kink_mass`` of an activation whose kinks are not known).

    Nothing waits for the GPU, and rows are drawn by a generator of its own: training is bitwise the same without the
    monitor. When activations are replaced, it follows, and the windows of dead units begin anew.

    Args:
        every_n_steps: How many optimizer steps lie between two measurements; 50 if nothing else is given.
        sample_rows: How many rows, with all channels, of each input to use on each rank; ``"auto"`` as many as hold
            8,192 elements, 8 at least, with ``every_n_steps=1`` as ``"sparse"``, 4,096; ``None`` all.
        include: Shell-style patterns for the names of the sites to watch; one or several.
        seed: Which rows are drawn.
        registry: Where activations are looked up; ``None`` means `lit_gelu.activations.registry`.
        every_n_epochs: Measure the last step of every so many epochs instead.
        at_steps: Measure at these step numbers, counted from 0, instead.
        input_sample: A batch for ``forward``, which finds calls; see `lit_gelu.surgery.find_sites`. By default the
            module's ``example_input_array``.
        dead_unit_window: Measurements in a row after which a channel that passed nothing counts as dead; ``None`` to
            count none.
        gaussian: Whether to log what a normal input would give, which nearly doubles the number of figures.
        name: Figures are logged as ``curvature/<name>/...``; several monitors in one Trainer need several names.

    Raises:
        ArgumentError: If a number is not positive, or more than one way is given to say when; at the start of a
            fit, if another monitor of the Trainer has the same name.
        UnsupportedRunError: At the start of a fit, if the Trainer has no logger, or ``include`` matches no site.

    Example:
        >>> monitor = ActivationCurvatureMonitor(every_n_steps=100, include=["encoder.*", "decoder.*"])
        >>> monitor.latest
        {}
    """

    def __init__(
        self,
        every_n_steps: int | None = None,
        sample_rows: int | Literal["auto", "sparse"] | None = "auto",
        include: str | Sequence[str] = "*",
        seed: int = 0,
        registry: ActivationRegistry | None = None,
        *,
        every_n_epochs: int | None = None,
        at_steps: Iterable[int] | None = None,
        input_sample: Any = None,
        dead_unit_window: int | None = 100,
        gaussian: bool = False,
        name: str = "",
    ) -> None:
        self.schedule = MeasurementSchedule(every_n_steps, every_n_epochs, at_steps)
        self.settings = ActivationSettings(
            include=names_of("include", include),
            sample_rows="sparse" if sample_rows == "auto" and self.schedule.every_n_steps == 1 else sample_rows,
            seed=seed,
            dead_unit_window=dead_unit_window,
            gaussian=gaussian,
        )
        self.registry = registry
        self.input_sample = input_sample
        self.name = name_of("name", name)
        self.latest: Figures = ShownFigures()  # of the last measurement that was logged, by site and statistic
        self.latest_gaussian: Figures = ShownFigures()  # the same for a normal input
        self._prefix = ("curvature", self.name) if self.name else ("curvature",)
        self._events: deque[_Event] = deque()  # that are not logged, the oldest first
        self._measurement: ActivationMeasurement | None = None  # while hooks are on
        self._recording = False
        self._overdue = False
        self._is_due = False  # whether figures are written as soon as they arrive
        self._seconds = 0.0  # of this event so far, and of logging the one before
        self._state: dict[str, Any] | None = None  # of the last measurement, for the next fit
        self._warned: set[str] = set()

    @property
    @override
    def state_key(self) -> str:
        """Tells monitors of one Trainer apart, so that each finds its own state in a checkpoint."""
        schedule = self.schedule
        return self._generate_state_key(
            every_n_steps=schedule.every_n_steps,
            every_n_epochs=schedule.every_n_epochs,
            at_steps=None if schedule.at_steps is None else sorted(schedule.at_steps),
            sample_rows=self.settings.sample_rows,
            include=self.settings.include,
            seed=self.settings.seed,
            name=self.name,
        )

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a Trainer that fits without a logger or with another monitor of this name; forget another run."""
        refuse_mixed_packages(trainer, pl_module)
        if stage == "fit":
            require_logger(trainer, type(self).__name__)
            others = [other for other in callbacks_of(trainer) if isinstance(other, type(self)) and other is not self]
            if any(other.name == self.name for other in others):
                raise ArgumentError(
                    f"Two monitors of activations are both named {self.name!r}, and would overwrite each other's "
                    "figures. Give one of them a name: ActivationCurvatureMonitor(name='encoder', ...) logs as "
                    "curvature/encoder/..."
                )
            if trainer.global_step == 0:  # a checkpoint is loaded later
                self.schedule.reset()
                self._clear()
                self._state = None

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the hooks on before the first forward pass: a compiled one keeps the hooks it was compiled with."""
        self._clear()
        self._overdue = False
        self._warned.clear()
        state, self._state = self._state, None
        measurement = self._attach(pl_module)
        if not measurement.names:
            self._detach()
            raise UnsupportedRunError(self._nothing_to_watch(pl_module, measurement))
        if state is not None:
            measurement.load_state_dict(state, pl_module.device)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn if the run is too short for a single measurement."""
        self.schedule.warn_if_never_due(trainer, type(self).__name__)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin to record if a measurement is due."""
        if self.schedule.is_due(trainer) or self._overdue:
            start = time.perf_counter()
            self._follow(pl_module)
            self._start(trainer, pl_module)
            self._seconds += time.perf_counter() - start

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Pause: activation checkpointing calls the activations again in the backward pass."""
        if self._recording and self._measurement is not None:
            self._measurement.recorder.pause()

    @override
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on: a training step with several backward passes may call the activations again."""
        if self._recording and self._measurement is not None:
            self._measurement.recorder.resume()

    @override
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Sum what belongs to activations whose parameters are about to be trained."""
        if self._recording and self._measurement is not None:
            self._measurement.recorder.add_up()

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Reduce what was recorded; at a logging step, log what has arrived on the host."""
        self._finish(trainer, pl_module, in_doubt=True)
        self._is_due |= is_logging_step(trainer) or len(self._events) >= _MOST_EVENTS
        if self._is_due:
            start = time.perf_counter()
            self._write(trainer, wait=False)
            self._is_due = bool(self._events)  # on a GPU they arrive a step later
            self._seconds += time.perf_counter() - start

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop recording, since a batch that the module skipped has no end of its own, and log what is on its way."""
        self._stop()
        self._write(trainer)

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Log what is on its way: a resumed run will not."""
        self._write(trainer)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the rest."""
        self._write(trainer)

    def on_activations_swapped(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        report: SwapReport | None,  # noqa: ARG002 - the listener's signature
    ) -> None:
        """Put the hooks on the new activations; see `ActivationSwapListener`."""
        # A swap may end when the training step of the batch at hand is over, but this callback has not been told so.
        progress = trainer.fit_loop.epoch_loop.batch_progress.current
        if progress.processed == progress.ready:  # type: ignore[attr-defined]  # Lightning declares a base class
            self._finish(trainer, pl_module, in_doubt=False)
        recording = self._recording
        if self._follow(pl_module) and recording:
            self._start(trainer, pl_module)

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Take the hooks off, and log what waits: the last steps before a failure are those one wants to see."""
        try:
            if trainer.world_size == 1:  # of several ranks this one may be alone here, and would wait for the others
                self._stop()
                self._write(trainer)
        finally:
            self._end()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the hooks off; a checkpoint that is saved later has the state of before."""
        self._end()

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to log the same."""
        return {
            "schedule": self.schedule.state_dict(),
            "measurement": self._state if self._measurement is None else self._measurement.state_dict(),
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.schedule.load_state_dict(state_dict["schedule"])
        self._state = state_dict["measurement"]

    def _attach(self, model: LightningModule) -> ActivationMeasurement:
        self._detach()
        registry = registry_or_default(self.registry)
        # A pass that nobody asked for, before the run's first, would make another module the root of the shards.
        left_out = self.input_sample is None and shards_parameters(model.trainer)
        sample = None if left_out else as_batch(self.input_sample, model)
        measurement = self._measurement = ActivationMeasurement(model, self.settings, registry, sample)
        remedy = f" {_GIVE_SAMPLE}." if sample is None else ""
        for site, reason in measurement.refused.items():
            self._warn_once(site, f"ActivationCurvatureMonitor cannot observe {site!r}: {reason}.{remedy}")
        if measurement.unknown_kinks:
            self._warn_once(
                "unknown kinks",
                "ActivationCurvatureMonitor leaves out the kink mass of "
                f"{', '.join(map(repr, measurement.unknown_kinks))}: where f' jumps is not known. Register the "
                "activation with facts=ActivationFacts(smoothness=..., kinks=...).",
            )
        return measurement

    def _follow(self, model: LightningModule) -> bool:
        """Attach anew if a module of the model was replaced, added or removed; what was recorded is lost then."""
        # Where nothing is left to watch, a warning says so, and nothing is watched until the model changes again.
        if self._measurement is None or self._measurement.is_current():
            return False
        measurement = self._attach(model)
        if not measurement.names:
            self._warn_once("", self._nothing_to_watch(model, measurement))
        return True

    def _detach(self) -> None:
        if self._measurement is not None:
            self._measurement.detach()
        self._measurement = None
        self._recording = False

    def _end(self) -> None:
        if self._measurement is not None:
            self._state = self._measurement.state_dict()
        self._detach()

    def _start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record from now on, with rows that depend on seed, step and rank alone; if there is anything to watch."""
        if self._measurement is not None and self._measurement.names:
            seed = (self.settings.seed * 1_000_003 + logged_step(trainer)) * 65_537 + trainer.global_rank
            self._recording = True
            self._measurement.recorder.start(seed % 2**63, pl_module.device)

    def _stop(self) -> None:
        self._recording = False
        if self._measurement is not None:
            self._measurement.recorder.stop()

    def _finish(self, trainer: Trainer, pl_module: LightningModule, *, in_doubt: bool) -> None:
        """Stop recording, and take note of what was recorded; `in_doubt` if replacements may have spoilt it."""
        measurement = self._measurement
        if not self._recording or measurement is None:
            return
        start = time.perf_counter()
        self._stop()
        # One that was not called may have been replaced since the batch began: the next is measured instead.
        self._overdue = in_doubt and not measurement.saw_all() and self._follow(pl_module)
        if not self._overdue:
            readout = measurement.reduce(pl_module.device, over_ranks=trainer.world_size > 1)
            seconds = self._seconds + measurement.recorder.seconds + time.perf_counter() - start
            step, interval = logged_step(trainer), self.schedule.record(trainer)
            self._events.append(_Event(measurement, readout, step, interval, seconds))
            self._seconds = 0.0

    def _write(self, trainer: Trainer, *, wait: bool = True) -> None:
        while self._events and (wait or self._events[0].readout.has_arrived()):
            event = self._events.popleft()
            measured, predicted = event.source.figures(event.readout)
            self.latest, self.latest_gaussian = ShownFigures(measured), ShownFigures(predicted)
            figures: dict[Path, float] = {
                (*self._prefix, site, name): value for site, row in measured.items() for name, value in row.items()
            }
            figures[*self._prefix, "activations", "seconds"] = event.seconds
            figures[*self._prefix, "activations", "interval"] = event.interval
            for site, row in predicted.items():
                figures |= {(*self._prefix, site, "gaussian", name): value for name, value in row.items()}
            log_figures(trainer, figures, event.step)
            missed = [site for site, row in measured.items() if row["share_non_finite"] != row["share_non_finite"]]
            for site in sorted(missed):  # of what was not called that share is NaN
                self._warn_once(
                    site,
                    f"ActivationCurvatureMonitor logs nothing for {site!r}: it was not called in the training step, or "
                    "with nested, sparse or complex tensors alone, or torch.compile goes on with code from before the "
                    "hooks were on (torch._dynamo.reset() lets it compile anew).",
                )

    def _clear(self) -> None:
        self._events.clear()
        self.latest, self.latest_gaussian = ShownFigures(), ShownFigures()

    def _nothing_to_watch(self, model: LightningModule, measurement: ActivationMeasurement) -> str:
        gates = measurement.gates
        gate_hint = f"; its gates, which are watched if include= names them in full: {', '.join(gates)}"
        calls = f"Calls of functions such as F.gelu are found with a sample. {_GIVE_SAMPLE}, use activation modules"
        remedy = calls if input_sample_of(model, self.input_sample) is None else "Use other patterns"
        no_activations = "none (a class of your own is one once it is registered: lit_gelu.activations.register)"
        return (
            f"ActivationCurvatureMonitor(include={list(self.settings.include)}) finds nothing to watch in "
            f"{type(model).__name__}. Its activations: {', '.join(measurement.passed_over) or no_activations}"
            f"{gate_hint if gates else ''}. {remedy}, or leave the monitor out."
        )

    def _warn_once(self, site: str, message: str) -> None:
        if site not in self._warned:
            self._warned.add(site)
            rank_zero_warn(message)
