"""What modules log, found out before the runs, where their fit needs the runs' callbacks or fails; by hand they fit."""

import math
import warnings

import pytest
import torch
from choice_nets import CPU, Breaks, ConvNet, OrdinaryStripes, Stripes, by_hand, check_by_hand
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping

from lit_gelu.choose import ChoiceArgumentError, choose

QUICK = {"seeds": 2, "max_epochs": 2, "measure": False}


@pytest.fixture(autouse=True)
def _lightnings_advice():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(num_workers|LeafSpec|number of training batches)")
        yield


class Scales(Callback):
    """Gives the module a number, and writes a line for every fit."""

    def __init__(self, path):
        self.path = path

    def setup(self, trainer, pl_module, stage):
        pl_module.scale = 0.5
        with self.path.open("a") as file:
            file.write("begun\n")


class NeededInTraining(ConvNet):
    def training_step(self, batch, index):
        return self.scale * super().training_step(batch, index)


class NeededByOptimizer(ConvNet):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1 * self.scale)


class NeedsPatience(ConvNet):
    """Its schedule asks the Trainer for a callback."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        patience = self.trainer.early_stopping_callback.patience
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, patience, 0.5)]


class InFitAlone(Stripes):
    """Has its sets in a fit alone."""

    def setup(self, stage=None):
        if stage == "fit":
            super().setup(stage)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("build", "data", "metric", "options"),
    [
        (NeededInTraining, OrdinaryStripes, "val_loss", {"num_sanity_val_steps": 0}),
        (NeededInTraining, Stripes, "test_acc", {}),
        (NeededByOptimizer, OrdinaryStripes, "val_acc", {}),
        (NeededByOptimizer, InFitAlone, "val_loss", {}),
    ],
)
def test_a_fit_that_needs_a_callback_is_as_by_hand(tmp_path, build, data, metric, options):
    given = {"callbacks": [Scales(tmp_path / "chosen")], **options}
    choice = choose(build, ["gelu", "relu"], data(), metric=metric, trainer=CPU | given, **QUICK)
    assert (tmp_path / "chosen").read_text().count("begun") == 4  # the runs, and nothing before them
    by_hands = {"callbacks": [Scales(tmp_path / "by hand")], **options}
    check_by_hand(choice, build, data(), metric, 2, test=metric == "test_acc", **by_hands)


def test_a_schedule_that_asks_for_a_callback_is_as_by_hand():
    given = CPU | {"callbacks": [EarlyStopping("val_loss", patience=1)]}
    choice = choose(NeedsPatience, ["gelu", "relu"], Stripes(), metric="val_loss", trainer=given, **QUICK)
    for candidate in choice.candidates:
        for run in candidate.runs:
            own = [EarlyStopping("val_loss", patience=1)]
            alone = by_hand(NeedsPatience, run.label, run.seed, Stripes(), 2, callbacks=own, **CPU)
            assert run.value(choice.metric) == alone.logged["val_loss"]


def test_a_name_that_is_not_logged_is_named_with_those_that_are(tmp_path):
    given = CPU | {"callbacks": [Scales(tmp_path / "chosen")]}
    with pytest.raises(ChoiceArgumentError, match=r"val_eror' is not logged.*val_acc, val_loss"):
        choose(NeededInTraining, ["gelu", "relu"], Stripes(), metric="val_eror", trainer=given, **QUICK)


class LoggedInFit(ConvNet):
    """Logs another figure, but not before it was trained."""

    def validation_step(self, batch, index):
        super().validation_step(batch, index)
        if self.trainer.global_step:
            self.log("late", float(self.trainer.global_step))


def test_a_candidate_that_cannot_be_trained_leaves_the_names_to_the_others():
    names = {"broken": Breaks, "gelu": "gelu", "relu": "relu"}
    choice = choose(LoggedInFit, names, OrdinaryStripes(), metric="late", mode="min", trainer=CPU, **QUICK)
    values = {candidate.label: candidate.values(choice.metric) for candidate in choice.candidates}
    assert values == {"gelu": [12.0, 12.0], "relu": [12.0, 12.0], "broken": [math.inf] * 2}  # 2 epochs of 6 steps


def test_an_error_of_the_fit_is_said():
    class Fails(ConvNet):
        def validation_step(self, batch, index):
            raise RuntimeError("in validation")

        def training_step(self, batch, index):
            raise RuntimeError("in training")

    given = CPU | {"num_sanity_val_steps": 0}
    with pytest.raises(ChoiceArgumentError, match="gelu: RuntimeError: in training; relu"):
        choose(Fails, ["gelu", "relu"], Stripes(), metric="val_loss", trainer=given, **QUICK)
