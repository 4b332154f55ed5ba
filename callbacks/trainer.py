"""What callbacks ask of a Trainer that Lightning's own types do not say, and what they write to its loggers."""

import math
import re
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.plugins.precision import DoublePrecision, HalfPrecision
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.utils import _pytree as pytree
from typing_extensions import override

from lit_gelu.errors import UnsupportedRunError
from lit_gelu.files import write_atomically
from lit_gelu.report.sources import CurveRecorder
from lit_gelu.sandbox import input_sample_of

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

Path = tuple[str, ...]  # the parts of a logged name; the logger says what joins them (``/`` for most)


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """Return a Trainer's callbacks, in the order in which it calls them."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # a connector sets it
    return callbacks


def shards_parameters(trainer: Trainer) -> bool:
    """Return whether the strategy splits parameters over devices."""
    return isinstance(trainer.strategy, (FSDPStrategy, DeepSpeedStrategy, ModelParallelStrategy))


def as_batch(input_sample: Any, module: LightningModule) -> Any:
    """Return `input_sample_of` a module as the Trainer hands it over: on its device, in its dtype where that is set."""
    # ``precision="bf16-true"`` and the like convert batches. A module that is to be restored is not converted yet.
    plugin = None if module._trainer is None else module._trainer.precision_plugin
    is_set = isinstance(plugin, HalfPrecision | DoublePrecision)
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), None) if is_set else None

    def placed(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.to(module.device, dtype if leaf.is_floating_point() else None)

    return pytree.tree_map(placed, input_sample_of(module, input_sample))


def is_trial_run(trainer: Trainer) -> bool:
    """Return whether the Trainer only tries the code on a few batches (``fast_dev_run``)."""
    return bool(trainer.fast_dev_run)  # type: ignore[attr-defined]  # a connector sets it


def steps_of_run(trainer: Trainer) -> float:
    """Return how many optimizer steps the whole run has; infinite where Lightning cannot tell."""
    try:
        steps = trainer.estimated_stepping_batches
    except MisconfigurationException:
        return math.inf
    return math.inf if steps < 0 else steps  # -1 for a stream of data without max_steps


def logged_step(trainer: Trainer) -> int:
    """Return the step under which Lightning logs the batch at hand: those before it, one a batch."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def is_logging_step(trainer: Trainer) -> bool:
    """Return whether Lightning logs the batch at hand; see ``log_every_n_steps``."""
    interval: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # a connector sets it
    return interval > 0 and (logged_step(trainer) + 1) % interval == 0


def refuse_mixed_packages(trainer: Any, pl_module: Any) -> None:
    """Refuse a Trainer, module or callback of ``pytorch_lightning``."""
    # A Trainer takes callbacks of the other package without a word, but no isinstance sees them for what they are:
    # an averaging callback, or a strategy that shards, would not be noticed.
    foreign = [
        thing for thing, kind in ((trainer, Trainer), (pl_module, LightningModule)) if not isinstance(thing, kind)
    ]
    foreign += [callback for callback in trainer.callbacks if not isinstance(callback, Callback)]
    if foreign:
        names = ", ".join(dict.fromkeys(f"{type(thing).__module__}.{type(thing).__qualname__}" for thing in foreign))
        raise UnsupportedRunError(
            f"{names}: not of lightning.pytorch, as lit_gelu.callbacks are. pytorch_lightning is another package with "
            "the same names; import everything from lightning.pytorch."
        )


class FigureKeeper(DummyLogger):
    """Stands behind a Trainer's own loggers, so that it is given the same figures under the same steps."""

    # As a Trainer's only logger it must change nothing: what a module calls on `self.logger.experiment` does nothing,
    # and checkpoints go where they would go without a logger.

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.recorder = CurveRecorder()
        self.hyper_parameters: dict[str, Any] = {}
        self._of_fit: frozenset[str] | None = None  # names of the fit's curves, once it is over
        self._folder = folder

    @property
    @override
    def save_dir(self) -> str:
        return self._folder

    @override
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        numbers: dict[str, float] = {}
        for name, value in metrics.items():
            # What `trainer.validate` measures, of another checkpoint perhaps, is not the end of the fit's curve.
            apart = self._of_fit is not None and name in self._of_fit and name != "epoch"
            try:
                numbers[f"after_fit/{name}" if apart else name] = float(value)
            except (TypeError, ValueError, RuntimeError):  # a tensor with several elements
                continue
        self.recorder.add(0 if step is None else step, numbers)

    def end_fit(self) -> None:
        """Keep apart, from now on, what is logged under a name that the fit had: ``after_fit/val_loss``."""
        self._of_fit = frozenset(curve.name for curve in self.recorder.curves())

    @override
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        if params is not None:
            self.hyper_parameters |= params if isinstance(params, Mapping) else vars(params)


def require_logger(trainer: Trainer, callback: str) -> None:
    """Refuse a Trainer without logger."""
    if not trainer.loggers and not any(getattr(each, "keeps_figures", False) for each in callbacks_of(trainer)):
        raise UnsupportedRunError(
            f"{callback} has nowhere to log to: Trainer(logger=False). Give the Trainer a logger, such as logger=True "
            "or CSVLogger('runs'), or the callback RunReport."
        )


def log_figures(trainer: Trainer, figures: Mapping[Path, float], step: int | None = None) -> None:
    """Write numbers to every logger, under Lightning's step number. Undefined numbers (NaN) are left out."""
    step = logged_step(trainer) if step is None else step
    for logger in trainer.loggers:
        join = logger.group_separator.join
        defined = {join(path): value for path, value in figures.items() if value == value}
        if isinstance(logger, MLFlowLogger):  # the others take any name, and there may be hundreds of them at each step
            defined = {_accepted(logger, name): value for name, value in defined.items()}
        if defined:
            logger.log_metrics(defined, step=step)


def publish_figures(trainer: Trainer, figures: Mapping[Path, float]) -> None:
    """Let other callbacks know numbers, on all ranks the same: ``EarlyStopping(monitor="curvature/loss/...")``."""
    trainer.callback_metrics.update({
        "/".join(path): torch.tensor(value, device=trainer.strategy.root_device) for path, value in figures.items()
    })


def log_texts(trainer: Trainer, texts: Mapping[Path, str]) -> None:
    """Write texts to every logger: as text to TensorBoard, as hyperparameters, which every logger has, to others."""
    # TensorBoard's hyperparameters can be written once only: a second time resets the metric that belongs to them. A
    # name is used once in a run, as some loggers refuse a second value.
    for logger in trainer.loggers:
        named = {_accepted(logger, logger.group_separator.join(path)): text for path, text in texts.items()}
        if isinstance(logger, TensorBoardLogger):
            for name, text in named.items():
                logger.experiment.add_text(name, text, logged_step(trainer))
        else:
            logger.log_hyperparams(named)


def log_figure(trainer: Trainer, path: Path, figure: "Figure") -> None:
    """Write a plot to every logger: as image to TensorBoard, Weights & Biases and MLflow, else as a PNG file."""
    # The file lies beside the metrics.csv of a CSVLogger, named after the parts of the path:
    # curvature_loss_spectral_density.png; a later one of the same name takes its place. To be called on rank 0.
    step = logged_step(trainer)
    for logger in trainer.loggers:
        name = logger.group_separator.join(path)
        if isinstance(logger, FigureKeeper):
            continue  # draws for itself
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_image(name, _rendered(figure), step, dataformats="HWC")
        elif isinstance(logger, WandbLogger):
            logger.log_image(key=name, images=[_rendered(figure)], step=step)
        elif isinstance(logger, MLFlowLogger):
            logger.experiment.log_figure(logger.run_id, figure, f"{'_'.join(path)}.png")
        else:
            folder = getattr(logger, "log_dir", None) or logger.save_dir
            if folder is None:
                rank_zero_warn(f"{type(logger).__name__} takes no images and has no folder: {name!r} is not kept.")
                continue
            with write_atomically(FilePath(folder) / f"{'_'.join(path)}.png") as temporary:
                figure.savefig(temporary)


def _accepted(logger: Logger, name: str) -> str:
    """Return a name as a logger takes it: MLflow refuses some characters, such as the ``#`` in names of calls."""
    return re.sub(r"[^\w\-. /:]", "_", name) if isinstance(logger, MLFlowLogger) else name


def _rendered(figure: "Figure") -> "np.ndarray":
    """Return a plot as an array ``[height, width, 3]`` of bytes, without a window and without pyplot's state."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()  # type: ignore[no-untyped-call]
