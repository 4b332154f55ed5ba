"""The data of a fit, once more: nothing of them is read or split again."""

import copy
from typing import Any, TypeVar

from lightning.pytorch import LightningDataModule, Trainer

Data = TypeVar("Data", bound=LightningDataModule)


def as_fitted(data: Data, trainer: Trainer) -> Data:
    """Return a data module that validates what a fit has validated.

    `Trainer.validate` calls ``setup``, and one that splits at random makes another split: samples that were trained on
    would be measured.

    Args:
        data: What the Trainer was given for its fit; it stays as it is.
        trainer: It, behind its fit.

    Returns:
        A shallow copy, so that its hooks and attributes are there; it has the loaders of the fit.
    """
    fitted, loaders = copy.copy(data), trainer.fit_loop.epoch_loop.val_loop._combined_loader
    for hook in ("prepare_data", "setup", "teardown"):
        setattr(fitted, hook, _nothing)
    if loaders is not None:  # else nothing was validated in the fit, and the data module makes its loader now
        fitted.val_dataloader = lambda: loaders  # type: ignore[method-assign]
    return fitted


def _nothing(stage: Any = None) -> None:
    """Take the place of a hook that was called for the fit."""
