"""Writing numbers, texts and figures to whatever loggers a Trainer has."""

import re
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_warn

from lit_gelu.callbacks.figure_keeper import FigureKeeper, keeps_figures
from lit_gelu.callbacks.trainer_facts import logged_step
from lit_gelu.errors import UnsupportedRunError
from lit_gelu.files import write_atomically

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

Path = tuple[str, ...]
"""The parts of a logged name; the logger says what joins them (``/`` for most)."""


def require_logger(trainer: Trainer, callback: str, remedy: str = "") -> None:
    """Refuse a Trainer without logger; ``remedy`` ends the sentence that says what else would help."""
    if not trainer.loggers and not keeps_figures(trainer):
        raise UnsupportedRunError(
            f"{callback} has nowhere to log to: Trainer(logger=False). Give the Trainer a logger, such as logger=True "
            f"or CSVLogger('runs'), or the callback RunReport{remedy}."
        )


def log_figures(trainer: Trainer, figures: Mapping[Path, float], step: int | None = None) -> None:
    """Write numbers to every logger, under Lightning's step number. Undefined numbers (NaN) are left out."""
    step = logged_step(trainer) if step is None else step
    for logger in trainer.loggers:
        join = logger.group_separator.join
        defined = {_accepted(logger, join(path)): value for path, value in figures.items() if value == value}
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


def log_figure(trainer: Trainer, path: Path, figure: "Figure", step: int | None = None) -> None:
    """Write a plot to every logger: as image to TensorBoard, Weights & Biases and MLflow, else as a PNG file."""
    # The file lies beside the metrics.csv of a CSVLogger, named after the parts of the path: curvature_heat_map.png; a
    # later one of the same name takes its place. To be called on rank 0.
    step = logged_step(trainer) if step is None else step
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
            folder = folder_of(logger)
            if folder is None:
                rank_zero_warn(f"{type(logger).__name__} takes no images and has no folder: {name!r} is not kept.")
                continue
            with write_atomically(folder / f"{'_'.join(path)}.png") as temporary:
                figure.savefig(temporary)


def _accepted(logger: Logger, name: str) -> str:
    """Return a name as a logger takes it: MLflow refuses some characters, such as the ``#`` in names of calls."""
    return re.sub(r"[^\w\-. /:]", "_", name) if isinstance(logger, MLFlowLogger) else name


def folder_of(logger: Logger) -> FilePath | None:
    """Return where a logger keeps its files; ``None`` if it has no folder."""
    if isinstance(logger, FigureKeeper):
        return None
    folder = getattr(logger, "log_dir", None) or logger.save_dir
    return None if folder is None else FilePath(folder)


def _rendered(figure: "Figure") -> "np.ndarray":
    """Return a plot as an array ``[height, width, 3]`` of bytes, without a window and without pyplot's state."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()  # type: ignore[no-untyped-call]
