"""`FigureKeeper`: a logger that keeps what is logged for the report of a run, and writes nothing."""

from typing import Any

from lightning.fabric.loggers.logger import _DummyExperiment
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger
from typing_extensions import override

from lit_gelu.report.sources import CurveRecorder

AFTER_FIT = "after_fit/"
"""What stands before the names of figures that the fit had logged, and that a validation or test logs behind it."""


class FigureKeeper(Logger):
    """Stands behind a Trainer's own loggers, so that it is given the same figures under the same steps."""

    # As a Trainer's only logger it must change nothing: what a module calls on `self.logger.experiment` does nothing,
    # and checkpoints go where they would go without a logger.

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.recorder = CurveRecorder()
        self.hyper_parameters: dict[str, Any] = {}
        self._of_fit: frozenset[str] | None = None  # names of the fit's curves, once it is over
        self._folder = folder
        self._experiment = _DummyExperiment()

    @property
    @override
    def name(self) -> str:
        """Nothing: folders are not called after it."""
        return ""

    @property
    @override
    def version(self) -> str:
        """Nothing, too."""
        return ""

    @property
    @override
    def save_dir(self) -> str:
        """Where the Trainer writes without a logger."""
        return self._folder

    @property
    def experiment(self) -> Any:
        """Something whose every method does nothing."""
        return self._experiment

    @override
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Keep numbers; what is no number is left out."""
        numbers: dict[str, float] = {}
        for name, value in metrics.items():
            # What `trainer.validate` measures, of another checkpoint perhaps, is not the end of the fit's curve.
            apart = self._of_fit is not None and name in self._of_fit and name != "epoch"
            try:
                numbers[f"{AFTER_FIT}{name}" if apart else name] = float(value)
            except (TypeError, ValueError, RuntimeError):  # a tensor with several elements
                continue
        self.recorder.add(0 if step is None else step, numbers)

    def end_fit(self) -> None:
        """Keep apart, from now on, what is logged under a name that the fit had: ``after_fit/val_loss``."""
        self._of_fit = frozenset(curve.name for curve in self.recorder.curves())

    @override
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Keep hyper-parameters, and texts, which are logged as such."""
        self.hyper_parameters |= params if isinstance(params, dict) else vars(params)


def keeps_figures(trainer: Trainer) -> bool:
    """Return whether a callback of a Trainer keeps what is logged, so that figures have somewhere to go."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]  # a connector sets it
    return any(getattr(callback, "keeps_figures", False) for callback in callbacks)
