"""Writing figures to whatever loggers a Trainer has."""

from collections.abc import Mapping

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from lit_gelu.callbacks.errors import NoLoggerError
from lit_gelu.callbacks.trainer_facts import logged_step

Path = tuple[str, ...]
"""The parts of a logged name; the logger says what joins them (``/`` for most)."""


def require_logger(trainer: Trainer, callback: str, remedy: str = "") -> None:
    """Refuse a Trainer without logger.

    Args:
        trainer: The Trainer.
        callback: The callback that needs a logger.
        remedy: What else than a logger would help.

    Raises:
        NoLoggerError: If the Trainer has none.
    """
    if not trainer.loggers:
        raise NoLoggerError(
            f"{callback} has nowhere to log to: Trainer(logger=False). Give the Trainer a logger, such as logger=True "
            f"or CSVLogger('runs'){remedy}."
        )


def log_figures(trainer: Trainer, figures: Mapping[Path, float]) -> None:
    """Write figures to every logger, under Lightning's step number. Undefined figures (NaN) are left out.

    Args:
        trainer: The Trainer, while it fits.
        figures: Figures by the parts of their names.
    """
    for logger in trainer.loggers:
        defined = {logger.group_separator.join(path): value for path, value in figures.items() if value == value}
        if defined:
            logger.log_metrics(defined, step=logged_step(trainer))


def log_texts(trainer: Trainer, texts: Mapping[Path, str]) -> None:
    """Write texts to every logger: as text to TensorBoard, as hyperparameters, which every logger has, to others.

    TensorBoard's hyperparameters can be written once only: a second time resets the metric that belongs to them.

    Args:
        trainer: The Trainer, while it fits.
        texts: Texts by the parts of their names; a name is used once in a run, as some loggers refuse a second value.
    """
    for logger in trainer.loggers:
        named = {logger.group_separator.join(path): text for path, text in texts.items()}
        if isinstance(logger, TensorBoardLogger):
            for name, text in named.items():
                logger.experiment.add_text(name, text, logged_step(trainer))
        else:
            logger.log_hyperparams(named)
