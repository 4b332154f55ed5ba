"""`ActivationCurvatureMonitor`: logs, during training, what every activation is given and how curved it is there."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from lit_gelu.activations import ActivationRegistry
from lit_gelu.callbacks.activation_curvature.events import ActivationEvent
from lit_gelu.callbacks.activation_curvature.log import ActivationLog, refuse_namesake
from lit_gelu.callbacks.activation_curvature.watch import ActivationWatch
from lit_gelu.callbacks.errors import CallbackArgumentError, ExplainedOnce
from lit_gelu.callbacks.loggers import require_logger
from lit_gelu.callbacks.measurement_schedule import MeasurementSchedule
from lit_gelu.callbacks.trainer_facts import logged_step, logs_at_this_step, refuse_mixed_packages
from lit_gelu.curvature import HistogramBins
from lit_gelu.curvature.activation.recording import Recording
from lit_gelu.curvature.activation_measurement import ActivationMeasurement, Figures
from lit_gelu.curvature.plots import HeatMapHistory
from lit_gelu.surgery import SwapReport


class ActivationCurvatureMonitor(ExplainedOnce):
    """Logs ``curvature/<site>/<statistic>`` for every activation, every so many optimizer steps.

    The statistics are those of `lit_gelu.curvature.statistics_from_sums`: mean, standard deviation, skewness and excess
    kurtosis of the pre-activation; the means of f, f^2, f', f'^2 (backward gain), |f''| and the gate f(x) / x; the kink
    mass, which |f''| lacks where f' jumps, as ReLU's does; the shares where f' < 0, f' <= -0.01, |f'| < 0.01 and
    |f' - 1| < 0.01, and of the rest, in transition; the share of NaN and infinite inputs. ``share_dead`` is the share
    of channels with |f'| < 0.01 wherever they were looked at in the last ``dead_unit_window`` measurements (see
    `lit_gelu.curvature.DeadUnitWindow`). Beside them ``curvature/<site>/gaussian/<statistic>`` says what a normal
    pre-activation of the same mean and deviation would give: a gap means that the input is not normal.

    *Which sites.* The elementwise activations that `lit_gelu.surgery.find_sites` lists with the role "activation", by
    their names there; what it lists as gates (tanh, sigmoid) only if ``include`` names it in full. Without
    ``input_sample`` these are modules. With one, also calls of functions (``F.gelu`` in a ``forward``), functions that
    a module holds, and, of a module that is called from several places, each call by itself (``relu#0``) beside all
    together. For that, the argument of the call is led through a probe that returns it; what is computed stays the same
    to the last bit, in compiled code too. A call that is not written out in a module's method, or one whose arguments
    are the activation's parameters, cannot be observed; a warning names it and says why.

    *When.* At the steps at which Lightning itself logs with ``log_every_n_steps`` of the same value (the 50th, the
    100th, ...), or at the end of epochs, or at chosen steps; see `MeasurementSchedule`. Figures carry the number of the
    step that was measured. The Trainer's own ``log_every_n_steps`` does not gate them: a figure that was asked for is
    never dropped. Under gradient accumulation the first micro-batch of such a step is measured. Validation and sanity
    checks are not.

    *What counts.* All calls of a site in the training step, outside of the backward pass (what activation checkpointing
    computes again does not count twice), of all ranks together. Calls for which the module is switched to evaluation
    within the step do not count. Figures are left out for a site that was not called, with a warning, and those that
    are not defined (``mean_gate`` where f(0) != 0, ``kink_mass`` of an activation whose kinks are not known).

    *What it costs.* Rows are copied in the forward pass, one operation a site (on a CPU, of activations whose backward
    pass needs their input, as GELU's does, at its end; 64 MiB of inputs at most are held for that). For all sites there
    is one reduction, one all-reduce over ranks (the first event has three more) and one transfer to the host. On CUDA
    nothing waits for it: figures are logged once they have arrived, mostly a step later.
    ``curvature/activations/seconds`` is the time that the host spent on the event.

    *When figures appear.* At the end of the step that was measured, if the Trainer itself logs at that step. Rows of
    steps in between wait for its next logging step (``log_every_n_steps``), 64 measurements and 64 MiB of them at most,
    and are summed and logged together, each under its own step: this costs less. They are also logged before a
    checkpoint is written, at the end of an epoch, and, with one process, after an exception. Nothing waits with
    ``max_overhead``, with ``sample_rows=None``, and where an activation has parameters.

    *What stays the same.* Rows are drawn by a generator of its own, from ``seed``, the step and the rank: training is
    bitwise the same with and without the monitor. A resumed run logs what an uninterrupted one does (without
    ``max_overhead``, which depends on the clock). With ``sample_rows=None`` in compiled code all inputs are kept until
    the end of the step.

    When activations are replaced, it follows: `ActivationSwap` announces itself, and the model is compared with what
    the hooks are on where a site was not called (the next step is measured instead) and at each measurement before
    which no other waits. The windows of dead units then begin anew.

    Args:
        every_n_steps: How many optimizer steps lie between two measurements; 50 if nothing else is given.
        sample_rows: How many rows of each input to use on each rank (see `lit_gelu.curvature.count_rows`); ``"auto"``
            as many as hold 8,192 elements, 8 at least, with ``every_n_steps=1`` as ``"sparse"``, 4,096, since two
            neighbouring steps hold as many; ``None`` all. A row holds every channel. 8,192 independent
            elements put a standard error of 0.5 % on a share of 1/4.
        include: Shell-style patterns for the names of the sites to watch; one or several.
        seed: Which rows are drawn.
        registry: Where activations are looked up; ``None`` means `lit_gelu.activations.registry`.
        every_n_epochs: Measure the last step of every so many epochs instead.
        at_steps: Measure at these step numbers, counted from 0, instead.
        max_overhead: Stretch the interval so that measurements take no greater share of the time, such as 0.01.
        input_sample: A batch for ``forward``, which finds calls; see `lit_gelu.surgery.find_sites`.
        dead_unit_window: Measurements in a row after which a channel that passed nothing counts as dead; ``None`` to
            count none.
        gaussian: Whether to log what a normal input would give.
        histograms: Whether to log histograms too, with 64 bins from -8 to 8, or with other bins.
        heat_maps: Statistics to draw at the end of the fit, layers over time, as ``curvature/heat_map/<statistic>``:
            names from above, or ``"curvature"`` for |f''| with the kink mass.
        name: If given, figures are logged as ``curvature/<name>/...``. Of several monitors in one Trainer all but one
            need a name.

    Raises:
        CallbackArgumentError: If a number is not positive, or more than one way is given to say when; at the start of a
            fit, if another monitor of the Trainer has the same name.
        NoLoggerError: At the start of a fit, if the Trainer has no logger.
        NoActivationError: At the start of a fit, if the model has no site, or none that ``include`` matches.

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
        max_overhead: float | None = None,
        input_sample: Any = None,
        dead_unit_window: int | None = 100,
        gaussian: bool = True,
        histograms: bool | HistogramBins = False,
        heat_maps: Sequence[str] = ("mean_squared_derivative", "curvature", "share_saturated"),
        name: str = "",
    ) -> None:
        if isinstance(sample_rows, str) and sample_rows not in {"auto", "sparse"}:
            raise CallbackArgumentError(
                f"{sample_rows=} is not accepted. Give a number, 'auto', 'sparse', or None for all."
            )
        for option, number in (("sample_rows", sample_rows), ("dead_unit_window", dead_unit_window)):
            if isinstance(number, int) and number < 1:
                raise CallbackArgumentError(f"{option}={number} is not accepted. Give a positive number, or None.")
        self.schedule = MeasurementSchedule(every_n_steps, every_n_epochs, at_steps, max_overhead)
        self.sample_rows = sample_rows
        self.include = (include,) if isinstance(include, str) else tuple(include)
        self.seed = seed
        self.registry = registry
        self.input_sample = input_sample
        self.dead_unit_window = dead_unit_window
        self.histograms = HistogramBins() if histograms is True else histograms or None
        self.gaussian = gaussian
        self.name = name
        self._log = ActivationLog(heat_maps, gaussian=gaussian, name=name)
        often = sample_rows == "auto" and self.schedule.every_n_steps == 1
        self._watch = ActivationWatch(
            self.include, input_sample, registry, "sparse" if often else sample_rows, dead_unit_window, self.histograms
        )
        self._overdue = False
        self._seconds = 0.0  # of this event so far, and of logging the one before

    @property
    def latest(self) -> Figures:
        """The figures of the last measurement that was logged, by site and statistic, on every rank."""
        return self._log.latest

    @property
    def latest_gaussian(self) -> Figures:
        """The same for a normal input."""
        return self._log.latest_gaussian

    @property
    def heat_maps(self) -> HeatMapHistory:
        """What the heat maps are drawn from."""
        return self._log.heat_maps

    @property
    @override
    def state_key(self) -> str:
        """Tells monitors of one Trainer apart, so that each finds its own state in a checkpoint."""
        schedule = self.schedule
        return self._generate_state_key(
            every_n_steps=schedule.every_n_steps,
            every_n_epochs=schedule.every_n_epochs,
            at_steps=None if schedule.at_steps is None else sorted(schedule.at_steps),
            sample_rows=self.sample_rows,
            include=self.include,
            seed=self.seed,
            name=self.name,
        )

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a Trainer that fits without a logger or with another monitor of this name; forget another run."""
        refuse_mixed_packages(trainer, pl_module)
        if stage == "fit":
            require_logger(trainer, type(self).__name__)
            refuse_namesake(trainer, self, self.name)
            if trainer.global_step == 0:  # a checkpoint is loaded later
                self.schedule.reset()
                self._log.start_anew()
                self._watch.load_state_dict(None)

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the hooks on before the first forward pass: a compiled one keeps the hooks it was compiled with."""
        self._log.clear()
        self._overdue = False
        self._watch.begin(pl_module)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn if the run is too short for a single measurement."""
        self.schedule.warn_if_never_due(trainer, type(self).__name__)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin to record if a measurement is due."""
        if self.schedule.is_due(trainer) or self._overdue:
            start = time.perf_counter()
            if not self._log.events:  # else the step before was measured, and saw all sites
                self._watch.follow(pl_module)
            self._start(trainer, pl_module)
            self._seconds += time.perf_counter() - start

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Pause: activation checkpointing calls the activations again in the backward pass."""
        self._watch.pause()

    @override
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on: a training step with several backward passes may call the activations again."""
        self._watch.resume()

    @override
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Sum what belongs to activations whose parameters are about to be trained."""
        self._watch.reduce_those_with_parameters()

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Reduce what was recorded, and log what has arrived."""
        measurement = self._watch.measurement
        if self._watch.recording and measurement is not None:
            start = time.perf_counter()
            self._watch.stop()
            recording = measurement.recorder.take()
            # One that was not called may have been replaced since the batch began: the next is measured instead.
            self._overdue = not recording.saw_all() and self._watch.follow(pl_module)
            if not self._overdue:
                self._take(trainer, pl_module, measurement, recording, start)
        if self._log.events:
            if not self._may_wait(trainer):
                self._log.events.reduce()
            start = time.perf_counter()
            self._write(trainer, wait=False)
            self._seconds += time.perf_counter() - start

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock of ``max_overhead``: validation is no training."""
        self.schedule.pause()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop recording, since a batch that the module skipped has no end of its own, and log what is on its way."""
        self._watch.stop()
        self._write(trainer)

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Log what is on its way: a resumed run will not."""
        self._write(trainer)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the rest, and the heat maps."""
        self._write(trainer)
        self._log.draw(trainer)

    def on_activations_swapped(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        report: SwapReport | None,  # noqa: ARG002 - the listener's signature
    ) -> None:
        """Put the hooks on the new activations; see `ActivationSwapListener`."""
        recording = self._watch.recording
        if self._watch.follow(pl_module) and recording:
            self._start(trainer, pl_module)

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Take the hooks off, and log what waits: the last steps before a failure are those one wants to see."""
        super().on_exception(trainer, pl_module, exception)
        try:
            if trainer.world_size == 1:  # of several ranks this one may be alone here, and would wait for the others
                self._watch.stop()
                self._write(trainer)
        finally:
            self._watch.end()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the hooks off; a checkpoint that is saved later has the state of before."""
        self._watch.end()

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to log the same."""
        return {
            "schedule": self.schedule.state_dict(),
            "heat_maps": self._log.state_dict(),
            "measurement": self._watch.state_dict(),
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.schedule.load_state_dict(state_dict["schedule"])
        self._log.load_state_dict(state_dict["heat_maps"])
        self._watch.load_state_dict(state_dict["measurement"])

    def _start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record from now on, with rows that depend on seed, step and rank alone."""
        seed = (self.seed * 1_000_003 + logged_step(trainer)) * 65_537 + trainer.global_rank
        self._watch.start(seed % 2**63, pl_module.device)

    def _take(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        measurement: ActivationMeasurement,
        recording: Recording,
        start: float,
    ) -> None:
        """Take note of a measurement, and of what it cost."""
        seconds = self._seconds + measurement.recorder.seconds + time.perf_counter() - start
        event = ActivationEvent(logged_step(trainer), recording, seconds)
        self._seconds = 0.0
        self._log.events.add(event, measurement, pl_module.device)
        if self.schedule.max_overhead is not None:  # which asks what summing costs
            self._log.events.reduce()
        cost = self.schedule.record_cost(trainer, event.seconds)
        event.seconds, event.interval = cost.seconds, cost.interval

    def _may_wait(self, trainer: Trainer) -> bool:
        """Return whether rows may go on waiting to be summed: until the Trainer logs, or too many wait."""
        measurement, number = self._watch.measurement, self._log.events.waiting
        return measurement is not None and not logs_at_this_step(trainer) and measurement.may_wait(number)

    def _write(self, trainer: Trainer, *, wait: bool = True) -> None:
        """Log what has arrived on the host; or all that was measured, when it has."""
        for measured in self._log.write(trainer, wait=wait):
            self._watch.warn_of_sites_not_called(measured)
