"""What a module logs in validation, found out by a fit of one batch that is thrown away."""

from contextlib import suppress
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from lit_gelu.choose.fitted_data import as_fitted
from lit_gelu.choose.one_by_one import Setup, values_of
from lit_gelu.choose.own_generators import OwnGenerators


def names_in_validation(setup: Setup, module: LightningModule, metric: str | None) -> tuple[list[str], bool]:
    """Return the names of what a module logs in validation, by one step of training and one batch of validation.

    It is a fit and no `Trainer.validate`: data modules may split in ``setup("fit")`` alone, and modules read optimizers
    where they validate. Callbacks of the runs are left out, because they may write files. Where a fit fails without
    them, a validation alone follows, with the data as they are. An error in training is left to the runs, if names are
    known: they report it.

    Args:
        setup: What the runs have in common. The generators of its data are as they were afterwards.
        module: It, built anew; it is trained.
        metric: The name that is wanted, if one is.

    Returns:
        The names, and whether they are all: not if the fit failed and the name that is wanted is not among them.

    Raises:
        Exception: Whatever the module or its data raise in the fit, if no names are known.
    """
    names = _LoggedNames(setup.generators)
    # Everything else is as in a run: schedules are made for the number of steps that it will have.
    options: dict[str, Any] = {"limit_val_batches": 1, "min_epochs": None, "min_steps": None}
    if setup.trainer.get("check_val_every_n_epoch", 1) is not None:  # else it is validated by batches alone
        options["check_val_every_n_epoch"] = 1
    trainer = setup.new_trainer(names, callbacks=None, **options)
    try:
        trainer.fit(module, datamodule=setup.data)
    except Exception:
        if not names.has(metric):
            _validate(setup, names, module, trainer)
        if not names.found:
            raise
        return list(names.found), names.has(metric)
    finally:
        setup.generators.put_back()
    return list(names.found), True


def _validate(setup: Setup, names: "_LoggedNames", module: LightningModule, fitted: Trainer) -> None:
    """Note the names by one batch of validation, behind a fit that failed; an error of its own says nothing more."""
    with suppress(Exception):
        trainer = setup.new_trainer(names, callbacks=None, limit_val_batches=1)
        trainer.validate(module, datamodule=as_fitted(setup.data, fitted), verbose=False)


class _LoggedNames(Callback):
    """Notes the names that are logged in validation, and ends the fit behind its first batch."""

    def __init__(self, generators: OwnGenerators) -> None:
        self.generators = generators
        self.found: dict[str, None] = {}

    def has(self, metric: str | None) -> bool:
        """Tell whether a name is known, or any if none is wanted."""
        return bool(self.found) if metric is None else metric in self.found

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.generators.note(trainer.datamodule)  # type: ignore[attr-defined] # it was given

    @override
    def on_train_batch_end(self, trainer: Trainer, *given: Any, **named: Any) -> None:
        trainer.should_stop = True  # a validation follows

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        results = trainer._results
        if results is not None:
            self.found |= dict.fromkeys(values_of(results, len(trainer.num_val_batches)))
