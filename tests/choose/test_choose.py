"""`choose` against runs made by hand, one by one; what fails, and what is refused."""

import copy
import json
import math
import warnings
from functools import partial
from unittest import mock

import pytest
import torch
from choice_nets import (
    CPU,
    Breaks,
    ConvNet,
    FixedNet,
    OrdinaryStripes,
    Scheduled,
    Stripes,
    by_hand,
    check_by_hand,
    explodes,
)
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.callbacks import ModelCheckpoint
from small_task import quiet_trainer
from torch import nn
from torch.utils.data import DataLoader

from lit_gelu import activations, surgery
from lit_gelu.choose import TrainedRun, choose, training
from lit_gelu.choose.choose import _metric
from lit_gelu.choose.training import RunFolder, Setup, settings_of
from lit_gelu.errors import ArgumentError, UnknownActivationError

QUICK = {"seeds": 2, "max_epochs": 2, **CPU}
NOT_TRAINED = {"side_effect": SystemExit("trained")}


@pytest.fixture(autouse=True)
def _lightnings_advice():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(num_workers|LeafSpec|number of training batches)")
        yield


@pytest.mark.parametrize("build", [ConvNet, Scheduled])
def test_side_by_side_is_the_runs_made_by_hand_up_to_rounding(build):
    choice = choose(build, ["gelu", "relu"], Stripes(), metric="val_loss", **QUICK)
    assert choice.trained == "Trained side by side, as a group."
    check_by_hand(choice, build, Stripes(), "val_loss", 2, rounding=1e-4)
    medians = [choice.median(candidate) for candidate in choice.candidates]
    assert medians == sorted(medians)
    assert choice.rows[0][:2] == [choice.best.label, f"{medians[0]:.4g}"]


@pytest.mark.parametrize(
    ("build", "data", "trainer"), [(ConvNet, OrdinaryStripes(), {}), (ConvNet, Stripes(), {"gradient_clip_val": 0.1})]
)
def test_one_after_another_where_there_is_no_group(build, data, trainer):
    choice = choose(build, ["gelu", "relu"], data, metric="val_loss", **QUICK, **trainer)
    assert choice.trained.startswith("Trained one after another: ")
    check_by_hand(choice, build, data, "val_loss", 2, **trainer)


def test_a_metric_of_the_test_set():
    choice = choose(ConvNet, ["gelu", "relu"], Stripes(), metric="test_acc", together=False, **QUICK)
    assert choice.metric.stage == "test"
    check_by_hand(choice, ConvNet, Stripes(), "test_acc", 2, test=True)


def test_what_fails_or_diverges_is_named_and_spoils_nothing():
    names = {"gelu": "gelu", "broken": Breaks, "explodes": explodes, "relu": "relu"}
    choice = choose(ConvNet, names, Stripes(), metric="val_loss", **QUICK)
    assert [candidate.label for candidate in choice.candidates][2:] == ["broken", "explodes"]
    assert choice.verdict[-2:] == [
        "broken failed (RuntimeError: it broke) with seed 0 and 1, and is not compared.",
        "explodes diverged with seed 0 and 1, and is not compared.",
    ]
    assert "RuntimeError: it broke" in choice.trained  # why there was no group
    alone = by_hand(ConvNet, "gelu", 1, Stripes(), 2, **CPU).logged["val_loss"]
    (gelu,) = (candidate for candidate in choice.candidates if candidate.label == "gelu")
    assert gelu.runs[1].value(choice.metric) == alone
    assert len(choice.differences) == 1
    assert "inf" in choice.to_json()


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"activations": ["gelu", "gelo"]}, UnknownActivationError),
        ({"activations": ["gelu"]}, ArgumentError),
        ({"activations": ["gelu", "gelu"]}, ArgumentError),
        ({"activations": "gelu"}, ArgumentError),
        ({"seeds": 1}, ArgumentError),
        ({"seeds": [3, 3]}, ArgumentError),
        ({"seeds": "many"}, ArgumentError),
        ({"seeds": [0, -1]}, ArgumentError),
        ({"metric": "val_eror"}, ArgumentError),
        ({"metrc": "val_loss"}, ArgumentError),
        ({"baseline": "elu"}, ArgumentError),
        ({"build": FixedNet}, ArgumentError),
        ({"build": 3}, ArgumentError),
        ({"swap": []}, ArgumentError),
        ({"data": torch.utils.data.DataLoader([1])}, ArgumentError),
    ],
)
def test_mistakes_are_found_before_anything_is_trained(changed, error):
    arguments = {"build": ConvNet, "activations": ["gelu", "relu"], "data": Stripes(), **QUICK} | changed
    with mock.patch.object(training, "train_alone", **NOT_TRAINED), pytest.raises(error):
        choose(arguments.pop("build"), arguments.pop("activations"), arguments.pop("data"), **arguments)


def swapped(activation):
    module = FixedNet()
    surgery.swap(module, {"*": activation}, module.example_input_array)
    return module


@pytest.mark.parametrize("sites", [True, nn.ReLU, ["net.1"]])
def test_the_activations_of_a_module_are_exchanged(sites):
    choice = choose(FixedNet, ["gelu", "relu"], Stripes(), swap=sites, metric="val_loss", together=False, **QUICK)
    (gelu,) = (candidate for candidate in choice.candidates if candidate.label == "gelu")
    alone = by_hand(lambda activation: swapped(activation), "gelu", 0, Stripes(), 2, **CPU)
    assert gelu.runs[0].value(choice.metric) == alone.logged["val_loss"]
    assert choice.notes == ["The activations at net.1 are exchanged."]


@pytest.mark.pictures
def test_results_are_written(tmp_path):
    data, options = Stripes(), QUICK | {"max_epochs": 1}
    choice = choose(ConvNet, ["gelu", "relu"], data, folder=tmp_path, metric="val_loss", **options)
    assert choice.notes == []
    plain = json.loads((tmp_path / "choice.json").read_text())
    assert plain["best"]["label"] == choice.best.label
    assert plain["verdict"] == choice.verdict
    assert [entry["values"] for entry in plain["candidates"]] == [c.values(choice.metric) for c in choice.candidates]
    for name in plain["files"].values():
        assert (tmp_path / name).stat().st_size > 100
    assert (tmp_path / plain["files"]["differences"]).read_bytes().startswith(b"\x89PNG")
    data.setup("test")
    images = data.test_set.inputs[:3]
    assert choice.module(images).shape == (3, 2)
    saved = torch.load(tmp_path / "best.ckpt", weights_only=True)
    torch.testing.assert_close(dict(saved["state_dict"]), dict(choice.module.state_dict()), rtol=0, atol=0)
    text = str(choice)
    assert text.splitlines()[0].split()[:3] == ["activation", "median", "val_loss"]


class Encoded(ConvNet):
    """A net with a part that it is given."""

    def __init__(self, encoder, activation="gelu"):
        super().__init__(activation)
        self.encoder = encoder

    def forward(self, x):
        return super().forward(self.encoder(x))


def test_modules_that_share_what_is_trained_are_refused_before_a_step_changes_it():
    """Else each run goes on with what the one before has trained, and one activation is better than itself."""
    encoder = nn.Conv2d(1, 1, 1)
    before = encoder.weight.clone()
    with pytest.raises(ArgumentError):
        choose(partial(Encoded, encoder), ["gelu", "relu"], Stripes(), metric="val_acc", **QUICK)
    assert torch.equal(encoder.weight, before)

    def build(activation):
        return Encoded(copy.deepcopy(encoder), activation)

    choice = choose(build, {"a": "gelu", "b": "gelu"}, Stripes(), metric="val_acc", **QUICK)
    assert "no difference" in choice.verdict[0]


class AsGiven(ConvNet):
    """Uses the module that it is given, and no copy."""

    def __init__(self, activation="gelu"):
        super().__init__("relu")
        self.act = activation if isinstance(activation, nn.Module) else activations.create(activation)

    def forward(self, x):
        return super().forward(self.act(x))


@pytest.mark.parametrize("together", [True, False])
def test_a_module_as_candidate_is_copied(together):
    module = nn.PReLU()
    names = {"module": module, "name": "prelu"}
    choice = choose(AsGiven, names, Stripes(), metric="val_acc", together=together, **QUICK)
    assert "no difference" in choice.verdict[0]
    assert module.weight.item() == 0.25


@pytest.mark.parametrize("together", [True, False])
def test_a_net_that_diverged_does_not_win_by_guessing(together):
    """Its outputs are NaN, and argmax then says 0 for all: an accuracy like any other."""

    class MostlyZero(Stripes):
        def load_train_and_val(self):
            train, val = super().load_train_and_val()
            val.labels.zero_()
            return train, val

    names = {"gelu": "gelu", "nan": "turns_to_nan"}
    with activations.registry.scope() as registry:
        registry.register("turns_to_nan")(lambda x: x * float("nan"))
        choice = choose(ConvNet, names, MostlyZero(), metric="val_acc", together=together, **QUICK)
    assert choice.best.label == "gelu"
    assert any(line.startswith("nan diverged with") for line in choice.verdict)


class OwnOrder(LightningDataModule):
    """Its order comes from a generator that it keeps."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)
        stripes = Stripes()
        stripes.setup("fit")
        self.train_set, self.val_set = stripes.train_set, stripes.val_set

    def train_dataloader(self):
        return DataLoader(self.train_set, 8, shuffle=True, generator=self.generator, collate_fn=lambda batch: batch)

    def val_dataloader(self):
        return DataLoader(self.val_set, 64, collate_fn=lambda batch: batch)


def test_every_run_finds_the_datas_own_generator_as_the_first():
    names = {"a": "gelu", "b": "gelu"}
    choice = choose(ConvNet, names, OwnOrder(), metric="val_acc", **QUICK)
    assert "gave the same numbers" in choice.verdict[0]
    first, other = (candidate.runs for candidate in choice.candidates)
    assert [run.val for run in first] == [run.val for run in other]


class Averages(Callback):
    """Puts other weights in at the end, as StochasticWeightAveraging does."""

    def on_train_end(self, trainer, pl_module):
        with torch.no_grad():
            for parameter in pl_module.parameters():
                parameter.mul_(0.5)


@pytest.mark.parametrize(
    "options",
    [{"check_val_every_n_epoch": 2}, {"check_val_every_n_epoch": 5}, {"callbacks": [Averages()]}],
    ids=["every second", "never", "averages"],
)
def test_what_decides_is_of_the_module_at_the_end(options):
    choice = choose(ConvNet, ["gelu", "relu"], Stripes(), metric="val_loss", **QUICK | {"max_epochs": 3} | options)
    data = Stripes()
    (metrics,) = quiet_trainer().validate(choice.module, data, verbose=False)
    assert choice.best_run.value(choice.metric) == pytest.approx(metrics["val_loss"], rel=1e-6)


def test_callbacks_that_serve_what_runs_do_not_have_are_left_out():
    options = QUICK | {"callbacks": [ModelCheckpoint(monitor="val_loss")], "max_epochs": 1}
    choice = choose(ConvNet, ["gelu", "relu"], Stripes(), **options)
    assert choice.notes == ["Not used here: ModelCheckpoint."]
    assert "as a group" in choice.trained


LOGGED = {"val": ["val_loss", "val_error", "val_acc"], "test": ["test_loss", "thing"]}


@pytest.mark.parametrize(
    ("name", "mode", "expected"),
    [
        (None, None, ("val_error", "val", "min")),
        ("val_acc", None, ("val_acc", "val", "max")),
        ("val_acc", "min", ("val_acc", "val", "min")),
        ("test_loss", None, ("test_loss", "test", "min")),
        ("thing", "max", ("thing", "test", "max")),
        ("thing", None, None),
        ("val_loss", "least", None),
    ],
)
def test_which_figure_decides_and_which_way(name, mode, expected):
    if expected is None:
        with pytest.raises(ArgumentError):
            _metric(name, mode, LOGGED)
        return
    metric = _metric(name, mode, LOGGED)
    assert (metric.name, metric.stage, metric.mode) == expected
    assert (metric.badness(1.0) > metric.badness(0.0)) == (metric.mode == "min")


def test_finished_runs_are_kept_and_others_made(tmp_path, caplog):
    caplog.set_level("INFO", "lit_gelu.choose")
    options = QUICK | {"max_epochs": 1, "together": False, "folder": tmp_path}
    with mock.patch.object(training, "train_alone", wraps=training.train_alone) as train:
        train.side_effect = [mock.DEFAULT, mock.DEFAULT, SystemExit]
        with pytest.raises(SystemExit):
            choose(ConvNet, ["gelu", "relu"], Stripes(), **options)
    progress = [record.getMessage() for record in caplog.records if record.name == "lit_gelu.choose"]
    assert [line.split(":")[0] for line in progress] == ["gelu, seed 0", "gelu, seed 1"]
    with mock.patch.object(training, "train_alone", wraps=training.train_alone) as train:
        choice = choose(ConvNet, ["gelu", "relu"], Stripes(), **options)
        assert train.call_count == 2
        again = choose(ConvNet, ["gelu", "relu", "elu"], Stripes(), **options)  # one more
        assert train.call_count == 4
        # With a figure of the test, runs that have none are made again.
        choose(ConvNet, ["gelu", "relu"], Stripes(), **options, metric="test_acc")
        assert train.call_count == 8
    other = choose(ConvNet, ["gelu", "relu"], Stripes(), **options | {"folder": None})
    values = {c.label: c.values(choice.metric) for c in choice.candidates}
    assert values == {c.label: c.values(other.metric) for c in other.candidates}
    assert values.items() <= {c.label: c.values(again.metric) for c in again.candidates}.items()


@pytest.mark.parametrize(
    ("build", "options", "data", "swap"),
    [
        (ConvNet, {"max_epochs": 2}, Stripes(), False),
        (ConvNet, {"max_epochs": 1}, OrdinaryStripes(), False),
        (ConvNet, {"max_epochs": 1}, Stripes(), True),
    ],
)
def test_runs_with_other_settings_are_refused(build, options, data, swap, tmp_path):
    before = settings_of(ConvNet, False, Setup(ConvNet, Stripes(), {"max_epochs": 1}))
    RunFolder(tmp_path, before).keep(TrainedRun("relu", "relu", 1, {"val_loss": math.inf}))
    assert RunFolder(tmp_path, before).runs["relu", "relu", 1].val == {"val_loss": math.inf}
    with pytest.raises(ArgumentError):
        RunFolder(tmp_path, settings_of(build, swap, Setup(build, data, options)))
    (tmp_path / "runs.jsonl").write_text("[]\n")
    with pytest.raises(ArgumentError):
        RunFolder(tmp_path, before)


class Ignores(ConvNet):
    """Takes an activation and makes no use of it."""

    def __init__(self, activation="gelu"):
        super().__init__("tanh")


@pytest.mark.parametrize(("build", "count"), [(Ignores, 1), (ConvNet, 0)])
def test_a_module_that_makes_no_use_of_the_activation_is_noted_before_training(build, count, caplog):
    choice = choose(build, ["relu", "gelu"], Stripes(), metric="val_loss", **QUICK)
    assert sum("--swap true" in note for note in choice.notes) == count
    messages = [record.getMessage() for record in caplog.records if record.name == "lit_gelu.choose"]
    assert messages[:count] == choice.notes[:count]
