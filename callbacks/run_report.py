"""`RunReport`: at the end of a fit, one page that says what was run and what its figures mean."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from typing_extensions import override

from lit_gelu.callbacks.onnx_export import OnnxExport
from lit_gelu.callbacks.swap.activation_swap import swaps_of
from lit_gelu.callbacks.swap.run import registry_for
from lit_gelu.callbacks.trainer import FigureKeeper, callbacks_of, is_trial_run, refuse_mixed_packages
from lit_gelu.errors import ArgumentError
from lit_gelu.files import require_writable, write_atomically
from lit_gelu.report import OptimizerSettings, ReportedRun, SiteActivations, judged, page
from lit_gelu.report.content import Status, flat, is_loss
from lit_gelu.report.sources import environment, exported_file, now
from lit_gelu.surgery.activation_record import ActivationRecord, record_activations

FILE_NAME = "report.html"
_OF_TRAINER = ("max_epochs", "max_steps", "accumulate_grad_batches", "gradient_clip_val", "precision", "num_devices")


class RunReport(Callback):
    """Writes one HTML page about a fit when it is over, also if it fails.

    In code::

        Trainer(callbacks=[ActivationSwap({"activation:relu": "gelu"}, at_epoch=5), OnnxExport(), RunReport()])

    The page takes whatever the Trainer and other callbacks log, with any logger and with none. It is written after
    the other callbacks have ended the fit, and again after each ``trainer.test`` or ``validate`` that follows, whose
    figures are kept apart from the fit's (``after_fit/val_loss``). Put it last in the list of callbacks.

    Args:
        path: The page; by default ``report.html`` in the logger's folder.
        title: By default the module's class.

    Attributes:
        report: What the last page says, a `lit_gelu.report.ReportedRun`; ``None`` before.
        written: Where it is.

    Raises:
        ArgumentError: If ``path`` does not end in .html.
        UnwritablePathError: At the start of a fit, if the page could not be written.

    Example:
        >>> RunReport("runs/report.html").path
        'runs/report.html'
    """

    keeps_figures = True  # what monitors ask where there is no logger

    def __init__(self, path: str | None = None, *, title: str = "") -> None:
        if path is not None and Path(path).suffix not in {".html", ".htm"}:
            raise ArgumentError(f"RunReport(path={str(path)!r}) must end in .html.")
        self.path = path
        self.title = title
        self.report: ReportedRun | None = None
        self.written: Path | None = None
        self._keeper: FigureKeeper | None = None
        self._at_start: ActivationRecord = {}
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
            self._started, self._fit_ended = 0.0, ("finished", "")
            self._keeper = FigureKeeper(trainer.default_root_dir)
        if self._keeper is not None and self._keeper not in trainer.loggers:
            trainer.loggers = [*trainer.loggers, self._keeper]

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._keeper is None or is_trial_run(trainer):
            return
        folder = trainer.log_dir or trainer.default_root_dir  # asks all ranks, so not on rank 0 alone
        self._target = Path(self.path) if self.path else Path(folder) / FILE_NAME
        self._at_start = record_activations(pl_module, registry_for(pl_module, []), name_opaque=True)
        if trainer.is_global_zero:
            require_writable(self._target)
            self._environment = environment()
        self._started = time.perf_counter()  # from here on there is a run to report

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write the page, when all others have ended; of a test, with how the fit before it ended."""
        if stage == "fit":
            self._end(trainer, pl_module, "finished", is_fit=True)
        else:
            self._end(trainer, pl_module, *self._fit_ended, is_fit=False)
        if self.written is not None and trainer.is_global_zero:
            rank_zero_info(f"RunReport: wrote {self.written}.")

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Write the page of a run that did not come to its end; the error itself is raised as it is."""
        stopped = isinstance(exception, KeyboardInterrupt | SIGTERMException)
        failure = "" if stopped else f"{type(exception).__name__}: {exception}"
        is_fit = trainer.state.fn == TrainerFn.FITTING
        try:
            self._end(trainer, pl_module, "interrupted" if stopped else "failed", failure, is_fit=is_fit)
        except Exception as error:  # noqa: BLE001 - whatever it is, the user needs the error of the run
            rank_zero_warn(f"RunReport: the page was not written. {type(error).__name__}: {error}")

    def _end(
        self, trainer: Trainer, pl_module: LightningModule, status: Status, failure: str = "", *, is_fit: bool
    ) -> None:
        trainer.loggers = [logger for logger in trainer.loggers if logger is not self._keeper]
        # A fit that failed before it began has no page, and a trial run leaves that of the fit before it.
        if self._keeper is None or self._started == 0.0 or is_trial_run(trainer):
            return
        seconds = None
        if is_fit:
            self._keeper.end_fit()
            self._fit_ended, seconds = (status, failure), time.perf_counter() - self._started
        if not trainer.is_global_zero:
            return
        run = self._run(trainer, pl_module, self._keeper, seconds)
        self.report = judged(replace(run, status=status, failure=failure))
        with write_atomically(self._target) as temporary:
            temporary.write_text(page(self.report), encoding="utf-8", newline="\n")
        self.written = self._target

    def _run(
        self, trainer: Trainer, pl_module: LightningModule, keeper: FigureKeeper, seconds: float | None
    ) -> ReportedRun:
        """Return what there is to say; without ``seconds``, of a test behind a fit."""
        before, curves = self.report, keeper.recorder.curves()
        swaps = tuple(swap.record.event() for swap in swaps_of(trainer) if swap.record is not None)
        # A call is a site from its swap on; that says what was there before.
        replaced = {change.site: change.old for swap in reversed(swaps) for change in swap.changes}
        starts = {**replaced, **self._at_start}
        ends = record_activations(pl_module, registry_for(pl_module, []), name_opaque=True)
        names = dict.fromkeys([*self._at_start, *ends])
        sites = tuple(SiteActivations(name, starts.get(name, ""), ends.get(name, "")) for name in names)
        length: tuple[int | None, int | None] = trainer.global_step, trainer.current_epoch
        if seconds is None and before is not None:  # a test, perhaps of a checkpoint from before a swap
            swaps, sites, seconds = before.swaps, before.sites, before.seconds
            length = before.steps, before.epochs
        exports = [each.exported for each in callbacks_of(trainer) if isinstance(each, OnnxExport)]
        optimizers = [each for each in trainer.optimizers if each.param_groups]  # Lightning has a stand-in for none
        settings = tuple(OptimizerSettings.of_groups(type(each).__name__, each.param_groups) for each in optimizers)
        missing = []
        if not any(curve.name.startswith("curvature/") for curve in curves):
            missing.append("Curvature: add ActivationCurvatureMonitor() and LossCurvatureMonitor(), which measure it.")
        if not any(is_loss(curve.name) for curve in curves):
            missing.append("Losses: none was logged. Call self.log('train_loss', loss) in training_step.")
        return ReportedRun(
            title=self.title or type(pl_module).__name__,
            source="RunReport",
            made=now(),
            steps=length[0],
            epochs=length[1],
            seconds=seconds,
            configuration=_configuration(trainer, pl_module, keeper.hyper_parameters),
            optimizers=settings or (before.optimizers if before else ()),
            curves=curves,
            sites=sites,
            swaps=swaps,
            files=tuple(exported_file(each.path) for each in exports if each is not None),
            environment=self._environment,
            missing=tuple(missing),
        )


def _configuration(
    trainer: Trainer, pl_module: LightningModule, logged: Mapping[str, Any]
) -> dict[str, dict[str, str]]:
    groups: dict[str, dict[str, Any]] = {
        "Module": {
            "class": f"{type(pl_module).__module__}.{type(pl_module).__qualname__}",
            "trained parameters": f"{sum(p.numel() for p in pl_module.parameters() if p.requires_grad):,}",
        },
        "Hyper-parameters": {name: value for name, value in logged.items() if not name.startswith("activation_swap/")},
        "Optimizers": {
            f"{i}.{type(optimizer).__name__}.{j}": {**group, "params": len(group["params"])}
            for i, optimizer in enumerate(trainer.optimizers)
            for j, group in enumerate(optimizer.param_groups)
        },
        "Trainer": {
            "accelerator": type(trainer.accelerator).__name__,
            "strategy": type(trainer.strategy).__name__,
            "callbacks": ", ".join(type(callback).__name__ for callback in callbacks_of(trainer)),
            **{name: value for name in _OF_TRAINER if (value := getattr(trainer, name, None)) is not None},
        },
    }
    return {name: flat(group) for name, group in groups.items() if group}
