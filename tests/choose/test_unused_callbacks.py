"""Callbacks that a Trainer refuses where what they serve is switched off: Lightning says itself which."""

import pytest
from choice_nets import CPU, ConvNet, Stripes, check_by_hand
from lightning.pytorch.callbacks import (
    DeviceStatsMonitor,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    RichModelSummary,
    TQDMProgressBar,
)
from lightning.pytorch.loggers import CSVLogger

from lit_gelu.callbacks import ActivationCurvatureMonitor, LossCurvatureMonitor, RunReport
from lit_gelu.choose import choose
from lit_gelu.choose.unused_callbacks import without_unused

ALL = [
    ModelCheckpoint,
    LearningRateMonitor,
    DeviceStatsMonitor,
    TQDMProgressBar,
    RichModelSummary,
    ActivationCurvatureMonitor,
    LossCurvatureMonitor,
]


@pytest.mark.filterwarnings("ignore:.*(num_workers|LeafSpec|number of training batches)")
@pytest.mark.parametrize("callbacks", [[kind() for kind in ALL], ModelCheckpoint(monitor="val_loss")])
def test_runs_are_made_without_them(callbacks):
    lines, options = [], CPU | {"callbacks": callbacks}
    choice = choose(
        ConvNet, ["gelu", "relu"], Stripes(), metric="val_loss", seeds=2, max_epochs=1, trainer=options, measure=False,
        say=lines.append,
    )  # fmt: skip
    names = [kind.__name__ for kind in ALL] if isinstance(callbacks, list) else ["ModelCheckpoint"]
    assert choice.notes == lines[:1] == [f"Not used here: {', '.join(names)}."]
    assert choice.trained == "Trained side by side, as a group."  # without callbacks nothing asks for single runs
    check_by_hand(choice, ConvNet, Stripes(), "val_loss", 1)


def test_what_is_switched_on_keeps_its_callbacks(tmp_path):
    given = {"logger": CSVLogger(tmp_path), "callbacks": [LearningRateMonitor(), ModelCheckpoint()]}
    options, left_out = without_unused(given)
    assert (options["callbacks"], left_out) == (given["callbacks"][:1], ["ModelCheckpoint"])
    options, left_out = without_unused({"enable_checkpointing": True, "callbacks": [ModelCheckpoint(), RunReport()]})
    assert (len(options["callbacks"]), left_out) == (2, [])
    options, left_out = without_unused({"callbacks": [ActivationCurvatureMonitor(), RunReport()]})  # it has its figures
    assert (len(options["callbacks"]), left_out) == (2, [])


@pytest.mark.parametrize("callbacks", [None, [], EarlyStopping("val_loss"), [EarlyStopping("val_loss")]])
def test_where_nothing_is_left_out_options_stay_as_they_were_given(callbacks):
    given = {"max_epochs": 1, "callbacks": callbacks}
    assert without_unused(given) == (given, [])
    assert without_unused({"max_epochs": 1}) == ({"max_epochs": 1}, [])
