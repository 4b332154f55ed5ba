"""What a module logs in validation, found out by a fit of one batch that is thrown away."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from lit_gelu.replicas.choice.one_by_one import Setup
from lit_gelu.replicas.choice.own_generators import OwnGenerators
from lit_gelu.replicas.membership.member_trainer import values_of


def names_in_validation(setup: Setup, module: LightningModule, metric: str | None) -> list[str]:
    """Return the names of what a module logs in validation, by one step of training and one batch of validation.

    It is a fit and no `Trainer.validate`: data modules may split in ``setup("fit")`` alone, and modules read optimizers
    where they validate. An error in training is left to the runs, if the names are known by then: they report it.

    Args:
        setup: What the runs have in common. The generators of its data are as they were afterwards.
        module: It, built anew; it is trained.
        metric: The name that is wanted, if one is.

    Returns:
        The names.

    Raises:
        Exception: Whatever the module or its data raise, if the names are not known by then.
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
        if not names.found or (metric is not None and metric not in names.found):
            raise
    finally:
        setup.generators.put_back()
    return list(names.found)


class _LoggedNames(Callback):
    """Notes the names that are logged in validation, and ends the fit behind its first batch."""

    def __init__(self, generators: OwnGenerators) -> None:
        self.generators = generators
        self.found: dict[str, None] = {}

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
