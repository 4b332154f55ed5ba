"""`RunReport`: at the end of a fit, one page that says what was run and what its figures mean."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from typing_extensions import override

from lit_gelu.activations import ActivationRegistry
from lit_gelu.callbacks.errors import CallbackArgumentError, ExplainedOnce
from lit_gelu.callbacks.figure_keeper import FigureKeeper
from lit_gelu.callbacks.onnx_export import OnnxExport
from lit_gelu.callbacks.run_facts import configuration_of, optimizers_of, rates_are_at_hand, rates_of
from lit_gelu.callbacks.swap.member import swaps_of
from lit_gelu.callbacks.trainer_facts import (
    callbacks_of,
    is_trial_run,
    logged_step,
    logs_at_this_step,
    refuse_mixed_packages,
)
from lit_gelu.files import require_writable, write_atomically
from lit_gelu.report import ReportedRun, SiteActivations, judged, page
from lit_gelu.report.content import Status, SwapEvent
from lit_gelu.report.environment import environment
from lit_gelu.report.loss_findings import is_loss
from lit_gelu.report.onnx_files import exported_file
from lit_gelu.surgery.activation_record import ActivationRecord, record_activations

FILE_NAME = "report.html"


class RunReport(ExplainedOnce):
    """Writes one HTML page about a fit when it is over, also if it fails.

    In code::

        Trainer(callbacks=[ActivationSwap({"activation:relu": "gelu"}, at_epoch=5), OnnxExport(), RunReport()])

    or, in a configuration of ``lit-gelu fit``::

        callbacks:
          - class_path: lit_gelu.callbacks.RunReport

    *What it says.* Findings in plain words (dead units, saturation, sharpness near the optimizer's limit, gains, kinks,
    a loss that is not finite), curves, activations and swaps, the curvature that `ActivationCurvatureMonitor` and
    `LossCurvatureMonitor` measured, exported files with their proofs, configuration, environment. The page needs
    nothing from elsewhere, and holds its content as JSON: `lit_gelu.report.read_report`.

    *What it takes.* Whatever the Trainer and other callbacks log, with any logger and with none: monitors, which
    otherwise need a logger, are content with this callback. Learning rates are kept at the steps at which the Trainer
    logs, and where they change. Training is not changed, nor are the folders of checkpoints.

    *When.* After the other callbacks have ended the fit; again after each ``trainer.test`` or ``validate`` that
    follows, whose figures are kept apart from the fit's (``after_fit/val_loss``); and if the fit fails or is
    interrupted. Put it last in the list: what others log in their ``on_exception`` is then on the page. Not after
    ``fast_dev_run``. Rank 0 writes, in one rename.

    Args:
        path: The page; by default ``report.html`` in the logger's folder.
        title: By default the module's class.
        onnx_files: Files to be described beside those of `OnnxExport`.
        registry: Which registry names the activations; ``None`` is the module's own or the default one.

    Attributes:
        report: What the last page says; ``None`` before.
        written: Where it is.

    Raises:
        CallbackArgumentError: If ``path`` does not end in .html.
        UnwritablePathError: At the start of a fit, if the page could not be written.

    Example:
        >>> RunReport("runs/report.html").path
        'runs/report.html'
    """

    keeps_figures = True  # what monitors ask where there is no logger

    def __init__(
        self,
        path: str | None = None,
        *,
        title: str = "",
        onnx_files: Sequence[str] = (),
        registry: ActivationRegistry | None = None,
    ) -> None:
        if path is not None and Path(path).suffix not in {".html", ".htm"}:
            raise CallbackArgumentError(f"RunReport(path={str(path)!r}) must end in .html.")
        if isinstance(onnx_files, str):
            raise CallbackArgumentError(f"RunReport(onnx_files={onnx_files!r}): accepted is a list of paths.")
        self.path = path
        self.title = title
        self.onnx_files = tuple(onnx_files)
        self.registry = registry
        self.report: ReportedRun | None = None
        self.written: Path | None = None
        self._keeper: FigureKeeper | None = None
        self._at_start: ActivationRecord = {}
        self._rates: dict[str, float] = {}  # of the step before
        self._started = 0.0
        self._fit_ended: tuple[Status, str] = ("finished", "")
        self._target = Path(FILE_NAME)
        self._environment: dict[str, str] = {}

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin to keep what is logged; a test after a fit goes on with that fit's figures."""
        refuse_mixed_packages(trainer, pl_module)
        if is_trial_run(trainer):
            return
        if stage == "fit":
            self.report = self.written = None
            self._started = 0.0
            self._fit_ended = ("finished", "")
            self._rates = {}
            self._keeper = FigureKeeper(trainer.default_root_dir)
        if self._keeper is not None and self._keeper not in trainer.loggers:
            trainer.loggers = [*trainer.loggers, self._keeper]

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Learn where to write, and which activations there are."""
        if self._keeper is None:
            return
        folder = trainer.log_dir or trainer.default_root_dir  # asks all ranks, so not on rank 0 alone
        self._target = Path(self.path) if self.path else Path(folder) / FILE_NAME
        self._at_start = self._activations(pl_module)
        if trainer.is_global_zero:
            require_writable(self._target)
            self._environment = environment()
        self._started = time.perf_counter()  # from here on there is a run to report

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Keep the learning rates that this step has, if the Trainer logs it or they have changed."""
        if self._keeper is None or not (logs_at_this_step(trainer) or rates_are_at_hand(trainer.optimizers)):
            return
        rates = rates_of(trainer.optimizers)
        if logs_at_this_step(trainer) or rates != self._rates:
            self._keeper.log_metrics(rates, logged_step(trainer))
        self._rates = rates

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write the page, when all others have ended."""
        self._leave(trainer)
        if self._keeper is None or self._started == 0.0:  # a fit that failed before it began has no page
            return
        if stage == "fit":
            self._keeper.end_fit()
            self._write(trainer, pl_module, "finished", seconds=time.perf_counter() - self._started)
        else:  # of a test behind a fit, which may have failed
            status, failure = self._fit_ended
            self._write(trainer, pl_module, status, failure=failure)
        if trainer.is_global_zero:
            rank_zero_info(f"RunReport: wrote {self.written}.")

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Write the page of a run that did not come to its end; the error itself is raised as it is."""
        super().on_exception(trainer, pl_module, exception)
        self._leave(trainer)
        if self._keeper is None or self._started == 0.0:
            return
        stopped = isinstance(exception, KeyboardInterrupt | SIGTERMException)
        status: Status = "interrupted" if stopped else "failed"
        failure = "" if stopped else f"{type(exception).__name__}: {exception}"
        seconds = None
        if trainer.state.fn == TrainerFn.FITTING:
            self._keeper.end_fit()
            self._fit_ended, seconds = (status, failure), time.perf_counter() - self._started
        try:
            self._write(trainer, pl_module, status, failure=failure, seconds=seconds)
        except Exception as error:  # noqa: BLE001 - whatever it is, the user needs the error of the run
            rank_zero_warn(f"RunReport: the page was not written. {type(error).__name__}: {error}")

    def _leave(self, trainer: Trainer) -> None:
        """Take the keeper out of the Trainer's loggers."""
        trainer.loggers = [logger for logger in trainer.loggers if logger is not self._keeper]

    def _activations(self, pl_module: LightningModule) -> ActivationRecord:
        """Return the activation at every site of the module."""
        registry = self.registry or getattr(pl_module, "registry", None)
        known = registry if isinstance(registry, ActivationRegistry) else None
        return record_activations(pl_module, known, name_opaque=True)

    def _write(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        status: Status,
        *,
        failure: str = "",
        seconds: float | None = None,
    ) -> None:
        """Gather and write, on rank 0."""
        if not trainer.is_global_zero or self._keeper is None:
            return
        keeper, before = self._keeper, self.report
        swaps = tuple(swap.record.event() for swap in swaps_of(trainer) if swap.record is not None)
        sites = _sites(self._at_start, self._activations(pl_module), swaps)
        if seconds is None and before is not None:  # a test, perhaps of a checkpoint from before a swap
            swaps, sites = before.swaps, before.sites
        curves = keeper.collection.curves()
        run = ReportedRun(
            title=self.title or type(pl_module).__name__,
            source=type(self).__name__,
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            status=status,
            failure=failure,
            steps=trainer.global_step,
            epochs=trainer.current_epoch,
            seconds=seconds if seconds is not None or before is None else before.seconds,
            configuration=configuration_of(trainer, pl_module, keeper.hyper_parameters),
            optimizers=optimizers_of(trainer.optimizers) or (before.optimizers if before else ()),
            curves=curves,
            sites=sites,
            swaps=swaps,
            files=tuple(exported_file(path) for path in self._files(trainer)),
            environment=self._environment,
            environment_of="run",
            missing=_missing({curve.name for curve in curves}, trainer),
        )
        self.report = judged(run)
        with write_atomically(self._target) as temporary:
            temporary.write_text(page(self.report), encoding="utf-8", newline="\n")
        self.written = self._target

    def _files(self, trainer: Trainer) -> list[Path]:
        """Return the files that were exported, and those that were named."""
        exports = [callback for callback in callbacks_of(trainer) if isinstance(callback, OnnxExport)]
        made = [callback.exported.path for callback in exports if callback.exported is not None]
        return list(dict.fromkeys([*made, *map(Path, self.onnx_files)]))


def _sites(
    at_start: ActivationRecord, at_end: ActivationRecord, swaps: Sequence[SwapEvent]
) -> tuple[SiteActivations, ...]:
    """Return the sites of both, in the model's order."""
    # A call is a site from its swap on; that says what was there before.
    replaced = {change.site: change.old for swap in reversed(swaps) for change in swap.changes}
    names = dict.fromkeys([*at_start, *at_end])
    return tuple(
        SiteActivations(name, _spec(at_start.get(name) or replaced.get(name, "")), _spec(at_end.get(name, "")))
        for name in names
    )


def _spec(entry: str | Mapping[str, str]) -> str:
    """Return a site's spec; of one that gives way to another, both."""
    return entry if isinstance(entry, str) else f"{entry.get('old', '')}, giving way to {entry.get('new', '')}"


def _missing(names: set[str], trainer: Trainer) -> tuple[str, ...]:
    """Return what other callbacks would have added."""
    said = []
    measured = any(name.endswith("/share_saturated") for name in names)
    if measured and not any(name.endswith("/share_dead") for name in names):
        said.append(
            "Dead units: there were fewer measurements than ActivationCurvatureMonitor's dead_unit_window (100 by "
            "default), or no site says which dimension counts its channels. Measure more often, or give a smaller one."
        )
    if not any(name.startswith("curvature/") for name in names):
        said.append(
            "Curvature: nothing measured it. ActivationCurvatureMonitor() shows what every activation is given, "
            "LossCurvatureMonitor() how sharp the loss is."
        )
    if not any(map(is_loss, names)):
        said.append(_missing_losses(trainer))
    return tuple(said)


def _missing_losses(trainer: Trainer) -> str:
    """Return why there is no loss: the module logs none, or no step was one at which the Trainer hands it on."""
    logged = sorted(filter(is_loss, {*trainer.logged_metrics, *trainer.callback_metrics}))
    if not logged:
        return "Losses: the module logged none. self.log('train_loss', loss) in training_step shows it."
    every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # a connector sets it
    return (
        f"Losses: the module logs {', '.join(logged)}, but loggers were given none in {trainer.global_step} steps. "
        f"The Trainer hands figures on every {every} steps, its log_every_n_steps. Give it a smaller one."
    )
