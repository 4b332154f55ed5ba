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
    BUILD,
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
from lit_gelu.activations.errors import UnknownActivationError
from lit_gelu.choose import TrainedRun, choose, training
from lit_gelu.choose.choose import _metric
from lit_gelu.choose.training import RunFolder
from lit_gelu.errors import ArgumentError, SwapError, UnsupportedRunError

PIXELS = Stripes(size=28)
QUICK = {"seeds": 2, "max_epochs": 2, "trainer": CPU}
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
    assert [run.epochs for candidate in choice.candidates for run in candidate.runs] == [[1, 2]] * 4


@pytest.mark.parametrize(
    ("build", "data", "trainer"),
    [
        (ConvNet, OrdinaryStripes(), {}),
        (ConvNet, Stripes(), {"gradient_clip_val": 0.1}),
    ],
)
def test_one_after_another_where_there_is_no_group(build, data, trainer):
    options = QUICK | {"trainer": CPU | trainer}
    choice = choose(build, ["gelu", "relu"], data, metric="val_loss", **options)
    assert choice.trained.startswith("Trained one after another: ")
    check_by_hand(choice, build, data, "val_loss", 2, **trainer)


def test_a_metric_of_the_test_set():
    choice = choose(ConvNet, ["gelu", "relu"], Stripes(), metric="test_acc", together=False, **QUICK)
    assert choice.metric.stage == "test"
    check_by_hand(choice, ConvNet, Stripes(), "test_acc", 2, test=True)


def test_one_activation_under_two_names_is_no_difference():
    with activations.registry.scope():

        @activations.register("bent_one", aliases=("bent_too",))
        def bent_one(x):
            return x.relu() + 0.1 * x

        choice = choose(BUILD, ["bent_one", "bent_too"], PIXELS, **QUICK | {"seeds": 5, "max_epochs": 1})
    assert choice.verdict == [
        "bent_one and bent_too gave the same numbers with every seed: there is no difference between them.",
    ]
    assert not choice.difference("bent_one", "bent_too").is_decided
    assert choice.rows[1][4] == "0"


def test_what_is_worse_is_said():
    # The net is one straight line where its activation is flat: it says one class of all.
    names = {"gelu": "gelu", "flat": nn.Threshold(1e9, 0.0)}
    choice = choose(ConvNet, names, Stripes(noise=0.2), metric="val_loss", **QUICK | {"seeds": 5, "max_epochs": 4})
    assert choice.verdict[0].startswith("gelu is better than flat: its val_loss")
    found = choice.difference("flat", "gelu")
    assert found.is_decided
    assert found.low > 0
    assert choice.rows[1][4].endswith("] *")


def test_runs_without_a_number_are_not_called_diverged():
    with pytest.raises(UnsupportedRunError):
        choose(ConvNet, ["gelu", "relu"], Stripes(), metric="val_loss", **QUICK | {"max_epochs": 0})


def test_what_fails_or_diverges_is_named_and_spoils_nothing():
    names = {"gelu": "gelu", "broken": Breaks, "explodes": explodes, "relu": "relu"}
    choice = choose(ConvNet, names, Stripes(), metric="val_loss", **QUICK)
    assert [candidate.label for candidate in choice.candidates][2:] == ["broken", "explodes"]
    assert choice.verdict[-2:] == [
        "broken failed with every seed (RuntimeError: it broke), and is not compared.",
        "explodes diverged with every seed, and is not compared.",
    ]
    assert "RuntimeError: it broke" in choice.trained  # why there was no group
    alone = by_hand(ConvNet, "gelu", 1, Stripes(), 2, **CPU).logged["val_loss"]
    (gelu,) = (candidate for candidate in choice.candidates if candidate.label == "gelu")
    assert gelu.runs[1].value(choice.metric) == alone
    assert len(choice.differences) == 1
    assert "inf" in choice.to_json()


def test_nothing_comes_to_its_end():
    with pytest.raises(UnsupportedRunError):
        choose(ConvNet, {"broken": Breaks, "explodes": explodes}, Stripes(), metric="val_loss", **QUICK)


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
        ({"metric": "val_acc", "mode": "most"}, ArgumentError),
        ({"baseline": "elu"}, ArgumentError),
        ({"build": FixedNet}, ArgumentError),
        ({"build": 3}, ArgumentError),
        ({"swap": []}, ArgumentError),
        ({"settings": "mine"}, ArgumentError),
        ({"data": torch.utils.data.DataLoader([1])}, ArgumentError),
    ],
)
def test_mistakes_are_found_before_anything_is_trained(changed, error):
    given = {"build": ConvNet, "activations": ["gelu", "relu"], "data": Stripes(), **QUICK} | changed
    with mock.patch.object(training, "train_alone", **NOT_TRAINED), pytest.raises(error):
        choose(given.pop("build"), given.pop("activations"), given.pop("data"), **given)


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


class OneCall(FixedNet):
    """The same with a call of a function behind it, and nothing that finds the call."""

    def __init__(self):
        super().__init__()
        self.example_input_array = None

    def forward(self, x):
        return nn.functional.relu(super().forward(x))


class OnlyCalls(OneCall):
    """The same without an activation module."""

    def __init__(self):
        super().__init__()
        self.net[1] = nn.Identity()


def test_calls_that_nothing_finds_are_named():
    quick = {**QUICK, "metric": "val_loss", "max_epochs": 1}
    assert len(choose(OneCall, ["gelu", "relu"], Stripes(), swap=True, **quick).notes) == 2
    with pytest.raises((ArgumentError, SwapError)):
        choose(OnlyCalls, ["gelu", "relu"], Stripes(), swap=True, **quick)


def test_callers_random_numbers_stay():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    choose(ConvNet, ["gelu", "relu"], Stripes(), **QUICK | {"max_epochs": 1})
    assert torch.equal(torch.get_rng_state(), before)


class OneName(ConvNet):
    """A net that logs its training and its validation by one name."""

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index, dataloader_idx=0):
        images, labels = batch
        self.log("loss", nn.functional.cross_entropy(self(images), labels))


class TwoSets(OrdinaryStripes):
    """Data with two validation sets."""

    def val_dataloader(self):
        return [super().val_dataloader(), torch.utils.data.DataLoader(self.sets[0], 16)]


@pytest.mark.parametrize(
    ("data", "together", "metric"),
    [
        (Stripes(), False, "loss"),
        (Stripes(), True, "loss"),
        (TwoSets(), True, "loss/dataloader_idx_1"),
    ],
)
def test_a_name_of_training_and_validation_is_that_of_validation(data, together, metric):
    choice = choose(OneName, ["gelu", "relu"], data, metric=metric, together=together, **QUICK)
    for candidate in choice.candidates:
        for run in candidate.runs:
            module = by_hand(OneName, candidate.label, run.seed, data, 2, **CPU).module
            passes = quiet_trainer(**CPU).validate(module, datamodule=data, verbose=False)
            logged = {name: value for found in passes for name, value in found.items()}
            rounding = 1e-4 if choice.trained.endswith("as a group.") else 0  # of members that are computed at once
            assert run.value(choice.metric) == pytest.approx(logged[metric], rel=rounding)


@pytest.mark.pictures
@pytest.mark.parametrize(
    ("build", "data", "classes"),
    [pytest.param(BUILD, PIXELS, 10, marks=pytest.mark.full, id="task"), pytest.param(ConvNet, Stripes(), 2, id="own")],
)
def test_results_are_written(tmp_path, build, data, classes):
    choice = choose(
        build, ["gelu", "relu"], data, seeds=2, max_epochs=1, trainer=CPU, folder=tmp_path, metric="val_loss",
    )  # fmt: skip
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
    assert choice.module(images).shape == (3, classes)
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
    given = nn.PReLU()
    names = {"module": given, "name": "prelu"}
    choice = choose(AsGiven, names, Stripes(), metric="val_acc", together=together, **QUICK)
    assert "no difference" in choice.verdict[0]
    assert given.weight.item() == 0.25


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
    assert any(said.startswith("nan diverged with") for said in choice.verdict)


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
    assert [run.curves for run in first] == [run.curves for run in other]


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
    given = {**QUICK, "max_epochs": 3, "trainer": {**CPU, **options}}
    choice = choose(ConvNet, ["gelu", "relu"], Stripes(), metric="val_loss", **given)
    data = Stripes()
    (found,) = quiet_trainer().validate(choice.module, data, verbose=False)
    assert choice.best_run.value(choice.metric) == pytest.approx(found["val_loss"], rel=1e-6)
    assert choice.best_run.epochs[-1] == 3


def test_callbacks_that_serve_what_runs_do_not_have_are_left_out():
    trainer = {"trainer": CPU | {"callbacks": [ModelCheckpoint(monitor="val_loss")]}, "max_epochs": 1}
    choice = choose(ConvNet, ["gelu", "relu"], Stripes(), **QUICK | trainer)
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
        ("val_eror", None, None),
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


@pytest.mark.parametrize("logged", [{"val": ["val_acc"], "test": []}, {"val": [], "test": []}])
def test_without_a_usual_figure_one_must_be_named(logged):
    with pytest.raises(ArgumentError):
        _metric(None, None, logged)


def test_finished_runs_are_kept_and_others_made(tmp_path):
    lines = []
    options = QUICK | {"max_epochs": 1, "together": False, "folder": tmp_path}
    with mock.patch.object(training, "train_alone", wraps=training.train_alone) as train:
        train.side_effect = [mock.DEFAULT, mock.DEFAULT, SystemExit]
        with pytest.raises(SystemExit):
            choose(ConvNet, ["gelu", "relu"], Stripes(), **options, say=lines.append)
    assert [line.split(":")[0] for line in lines] == ["gelu, seed 0", "gelu, seed 1"]
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
    ("change", "build", "data"),
    [
        ({"max_epochs": 2}, ConvNet, Stripes()),
        ({}, ConvNet, Stripes(batch_size=8)),
        ({}, ConvNet, OrdinaryStripes()),
        ({}, partial(ConvNet, width=3), Stripes()),
        ({"settings": {"code": 2}}, ConvNet, Stripes()),
        ({"swap": True}, FixedNet, Stripes()),
    ],
)
def test_runs_with_other_settings_are_refused(change, build, data, tmp_path):
    options = QUICK | {"max_epochs": 1, "folder": tmp_path, "settings": {"code": 1}}
    RunFolder(tmp_path, _settings_of(ConvNet, Stripes(), options)).keep(TrainedRun("gelu", "gelu", 0))
    RunFolder(tmp_path, _settings_of(ConvNet, Stripes(), options))
    with pytest.raises(ArgumentError):
        RunFolder(tmp_path, _settings_of(build, data, options | change))


def _settings_of(build, data, options):
    setup = training.Setup(build, data, {"max_epochs": options["max_epochs"]}, activations.registry)
    return training.settings_of(build, options.get("swap", False), setup, options["settings"])


RUN = {"label": "gelu", "spec": "gelu", "seed": 0, "curves": {"val_loss": [0.5]}, "epochs": [1]}


@pytest.mark.parametrize(
    "line",
    ["", "[]", "{}", "nonsense", json.dumps(RUN | {"curves": {"val_loss": ["x"]}}), json.dumps(RUN | {"seed": [1]}),
     json.dumps(RUN | {"curves": 3}), json.dumps(RUN | {"more": 3})],
)  # fmt: skip
def test_a_damaged_line_is_a_run_that_is_not_there(line, tmp_path):
    folder = RunFolder(tmp_path, {})
    folder.keep(TrainedRun("relu", "relu", 1, {"val_loss": [math.inf]}, [1]))
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write(f"{line}\n")
    again = RunFolder(tmp_path, {})
    assert list(again.runs) == [("relu", "relu", 1)]
    assert again.runs["relu", "relu", 1].curves == {"val_loss": [math.inf]}


@pytest.mark.parametrize("header", ["", "[]", "{", '{"schema": 1, "settings": {}}'])
def test_a_folder_of_which_nothing_is_known_is_refused(header, tmp_path):
    (tmp_path / "runs.jsonl").write_text(f"{header}\n{json.dumps(RUN)}\n")
    with pytest.raises(ArgumentError):
        RunFolder(tmp_path, {})


class Ignores(ConvNet):
    """Takes an activation and makes no use of it."""

    def __init__(self, activation="gelu"):
        super().__init__("tanh")


@pytest.mark.parametrize(("build", "count"), [(Ignores, 1), (ConvNet, 0)])
def test_a_module_that_makes_no_use_of_the_activation_is_noted_before_training(build, count):
    said = []
    choice = choose(build, ["relu", "gelu"], Stripes(), metric="val_loss", say=said.append, **QUICK)
    assert sum("--swap true" in note for note in choice.notes) == count
    assert said[:count] == choice.notes
