"""`choose` against runs made by hand, one by one; what fails, what is refused, and what an interruption leaves."""

import functools
import json
import math
import re
import threading
import warnings
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from choice_nets import (
    BUILD,
    CPU,
    Breaks,
    ConvNet,
    FixedNet,
    Hooked,
    OrdinaryStripes,
    Scheduled,
    Stripes,
    by_hand,
    explodes,
)
from lightning.pytorch import Callback, Trainer
from small_task import quiet_trainer
from torch import nn

from lit_gelu import activations, surgery
from lit_gelu.activations.errors import UnknownActivationError
from lit_gelu.export import OnnxPredictor
from lit_gelu.replicas import ChoiceArgumentError, choose
from lit_gelu.replicas.choice import AllRunsFailedError, FolderInUseError, together

PIXELS = Stripes(size=28)
QUICK = {"seeds": 2, "max_epochs": 2, "trainer": CPU, "measure": False}


@pytest.fixture(autouse=True)
def _lightnings_advice():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(num_workers|LeafSpec|number of training batches)")
        yield


def check_by_hand(choice, build, data, metric, epochs, **options):
    """Compare every run with the same run made by hand, and the best one's weights."""
    for candidate in choice.candidates:
        for run in candidate.runs:
            alone = by_hand(build, candidate.label, run.seed, data, epochs, **CPU, **options)
            assert run.value(choice.metric) == alone.logged[metric]
            if run is choice.best_run:
                torch.testing.assert_close(choice.module.state_dict(), alone.weights, rtol=0, atol=0)


def test_a_task_side_by_side_is_the_runs_made_by_hand():
    choice = choose(BUILD, ["gelu", "relu", "silu"], PIXELS, **QUICK)
    assert choice.trained == "Trained side by side, as a group."
    check_by_hand(choice, BUILD, PIXELS, "val_error", 2)
    medians = [choice.median(candidate) for candidate in choice.candidates]
    assert medians == sorted(medians)
    assert choice.rows[0][0] == choice.best.label
    assert choice.rows[0][1] == f"{medians[0]:.4g}"


@pytest.mark.parametrize("build", [ConvNet, Scheduled])
def test_a_net_of_ones_own_side_by_side_is_the_runs_made_by_hand(build):
    choice = choose(build, ["gelu", "relu"], Stripes(), metric="val_acc", **QUICK)
    assert "as a group" in choice.trained
    check_by_hand(choice, build, Stripes(), "val_acc", 2)
    medians = [choice.median(candidate) for candidate in choice.candidates]
    assert medians == sorted(medians, reverse=True)


@pytest.mark.parametrize(
    ("build", "data", "trainer", "reason"),
    [
        (ConvNet, OrdinaryStripes(), {}, "OrdinaryStripes is no InMemoryDataModule"),
        (Hooked, Stripes(), {}, "has a hook on_train_batch_start"),
        (ConvNet, Stripes(), {"gradient_clip_val": 0.1}, r"Trainer\(gradient_clip_val=...\)"),
    ],
)
def test_one_after_another_where_there_is_no_group(build, data, trainer, reason):
    options = QUICK | {"trainer": CPU | trainer}
    choice = choose(build, ["gelu", "relu"], data, metric="val_loss", **options)
    assert choice.trained.startswith("Trained one after another: ")
    assert re.search(reason, choice.trained)
    check_by_hand(choice, build, data, "val_loss", 2, **trainer)


def test_side_by_side_gives_what_one_after_another_gives():
    of_group, alone = (choose(BUILD, ["gelu", "elu"], PIXELS, together=together, **QUICK) for together in (True, False))
    assert "together=False" in alone.trained
    for one, other in zip(of_group.candidates, alone.candidates, strict=True):
        for mine, its in zip(one.runs, other.runs, strict=True):
            assert (mine.curves, mine.orders, mine.initial) == (its.curves, its.orders, its.initial)
            assert (mine.together, its.together) == (True, False)
    assert of_group.notes == alone.notes == []


def test_a_metric_of_the_test_set():
    choice = choose(ConvNet, ["gelu", "relu"], Stripes(), metric="test_acc", **QUICK)
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
        "Nothing is decided: between bent_one and bent_too no difference of val_error is larger than the spread over 5 "
        "seeds.",
    ]
    assert choice.notes == ["bent_one and bent_too are one activation, bent_one."]
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
    with pytest.raises(AllRunsFailedError, match="broken failed with every seed"):
        choose(ConvNet, {"broken": Breaks, "explodes": explodes}, Stripes(), metric="val_loss", **QUICK)


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"activations": ["gelu", "gelo"]}, UnknownActivationError, "gelo"),
        ({"activations": ["gelu"]}, ChoiceArgumentError, "at least two"),
        ({"activations": ["gelu", "gelu"]}, ChoiceArgumentError, "'gelu' is there twice.*labels of your own"),
        ({"activations": "gelu"}, ChoiceArgumentError, "Give several"),
        ({"seeds": 1}, ChoiceArgumentError, "no interval is possible"),
        ({"seeds": [3, 3]}, ChoiceArgumentError, "twice"),
        ({"seeds": "many"}, ChoiceArgumentError, "how many"),
        ({"seeds": [0, -1]}, ChoiceArgumentError, "from 0 on"),
        ({"metric": "val_eror"}, ChoiceArgumentError, "not logged.*val_acc, val_loss"),
        ({"metric": "val_acc", "mode": "most"}, ChoiceArgumentError, "mode='most'"),
        ({"baseline": "elu"}, ChoiceArgumentError, "one of gelu, relu"),
        ({"build": FixedNet}, ChoiceArgumentError, r"FixedNet\(\) takes no activation.*swap=True"),
        ({"build": 3}, ChoiceArgumentError, "build=3"),
        ({"swap": []}, ChoiceArgumentError, r"swap=\[\]"),
        ({"settings": "mine"}, ChoiceArgumentError, "settings='mine'.*Give a mapping"),
        ({"data": torch.utils.data.DataLoader([1])}, ChoiceArgumentError, "LightningDataModule"),
    ],
)
def test_mistakes_are_found_before_anything_is_trained(changed, error, said):
    given = {"build": ConvNet, "activations": ["gelu", "relu"], "data": Stripes(), **QUICK} | changed
    with mock.patch.object(Trainer, "fit", side_effect=AssertionError("trained")), pytest.raises(error, match=said):
        choose(given.pop("build"), given.pop("activations"), given.pop("data"), **given)


def swapped(activation):
    module = FixedNet()
    surgery.swap(module, {"*": activation}, module.example_input_array)
    return module


@pytest.mark.parametrize("sites", [True, nn.ReLU, ["net.1"]])
def test_the_activations_of_a_module_are_exchanged(sites):
    choice = choose(FixedNet, ["gelu", "relu"], Stripes(), swap=sites, metric="val_loss", **QUICK)
    (gelu,) = (candidate for candidate in choice.candidates if candidate.label == "gelu")
    alone = by_hand(lambda activation: swapped(activation), "gelu", 0, Stripes(), 2, **CPU)
    assert gelu.runs[0].value(choice.metric) == alone.logged["val_loss"]
    own = by_hand(FixedNet, None, 1, Stripes(), 2, **CPU)  # its ReLU in the place of its ReLU
    (relu,) = (candidate for candidate in choice.candidates if candidate.label == "relu")
    assert relu.runs[1].value(choice.metric) == own.logged["val_loss"]


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


def test_which_sites_are_exchanged_is_said_and_which_calls_are_not():
    quick = {**QUICK, "metric": "val_loss", "max_epochs": 1}
    (sites,) = choose(FixedNet, ["gelu", "relu"], Stripes(), swap=True, **quick).notes
    assert sites == "The activations at net.1 are exchanged."
    sites, calls = choose(OneCall, ["gelu", "relu"], Stripes(), swap=True, **quick).notes
    assert sites == "The activations at net.1 are exchanged."
    assert "these stay as they are: ':relu' (test_choose.py:" in calls
    assert "takes the module's example_input_array for it" in calls
    with pytest.raises(ChoiceArgumentError, match="takes the module's example_input_array for it: define that"):
        choose(OnlyCalls, ["gelu", "relu"], Stripes(), swap=True, **quick)


def test_callers_random_numbers_stay():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    choose(ConvNet, ["gelu", "relu"], Stripes(), **QUICK | {"max_epochs": 1})
    assert torch.equal(torch.get_rng_state(), before)


class DrawsByActivation(ConvNet):
    """Weights that depend on the activation."""

    def __init__(self, activation):
        super().__init__(activation)
        with torch.no_grad():
            self.net[0].weight *= activations.gain(activation)


def test_other_beginnings_are_said():
    choice = choose(DrawsByActivation, ["gelu", "relu"], Stripes(), **QUICK | {"max_epochs": 1})
    assert [note.split(":")[0][-35:] for note in choice.notes] == ["began with other weights at equal seeds"[-35:]]


def test_another_order_of_the_data_is_said():
    choice = choose(BUILD, ["gelu", "zero_identity_map"], PIXELS, **QUICK)
    (note,) = choice.notes
    assert "have batches in another order from epoch 2 on" in note


class SeededStripes(Stripes):
    """The same in an order that comes from the seed alone."""

    def __init__(self):
        super().__init__(size=28)
        self.order = "seed"


class Batches(Callback):
    """Notes which samples a run takes."""

    def __init__(self):
        self.labels = []

    def on_train_batch_start(self, trainer, module, batch, index):
        self.labels.append(batch[1].tolist())


@pytest.mark.parametrize(("data", "noted"), [(SeededStripes(), 0), (PIXELS, 1)])
def test_another_order_is_said_of_those_alone_that_have_one(data, noted):
    taken = []
    for activation in ("gelu", "zero_identity_map"):
        notes = Batches()
        by_hand(BUILD, activation, 0, data, 2, **CPU, callbacks=[notes])
        taken.append(notes.labels)
    assert (taken[0] != taken[1]) == bool(noted)
    assert len(choose(BUILD, ["gelu", "zero_identity_map"], data, **QUICK).notes) == noted


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
        (TwoSets(), True, "loss/dataloader_idx_0"),
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
            assert run.value(choice.metric) == logged[metric]


def test_finished_runs_are_kept(tmp_path):
    lines = []
    options = QUICK | {"max_epochs": 1, "together": False, "folder": tmp_path}
    real = Trainer.fit
    counted = mock.Mock(side_effect=[None, None, SystemExit])

    def fit(self, *given, **named):
        counted()
        return real(self, *given, **named)

    with mock.patch.object(Trainer, "fit", fit), pytest.raises(SystemExit):
        choose(ConvNet, ["gelu", "relu"], Stripes(), **options, say=lines.append)
    assert [line.split(":")[0] for line in lines] == ["gelu, seed 0", "gelu, seed 1"]
    counted = mock.Mock()
    with mock.patch.object(Trainer, "fit", fit):
        choice = choose(ConvNet, ["gelu", "relu"], Stripes(), **options)
        assert counted.call_count == 2
        again = choose(ConvNet, ["gelu", "relu", "elu"], Stripes(), **options)  # one more
        assert counted.call_count == 4
    wanted = choose(ConvNet, ["gelu", "relu"], Stripes(), **options | {"folder": None})
    values = {c.label: c.values(choice.metric) for c in choice.candidates}
    assert values == {c.label: c.values(wanted.metric) for c in wanted.candidates}
    assert values.items() <= {c.label: c.values(again.metric) for c in again.candidates}.items()


def test_a_group_goes_on_where_it_was(tmp_path, monkeypatch):
    options = QUICK | {"max_epochs": 3}
    wanted = choose(BUILD, ["gelu", "relu"], PIXELS, **options)
    monkeypatch.setattr(together, "SAVE_EVERY", -1.0)
    whole = together.MemberNotes.on_train_epoch_start

    def stops(self, trainer, module):
        if trainer.current_epoch == 2:
            raise SystemExit
        whole(self, trainer, module)

    monkeypatch.setattr(together.MemberNotes, "on_train_epoch_start", stops)
    with pytest.raises(SystemExit):
        choose(BUILD, ["gelu", "relu"], PIXELS, folder=tmp_path, **options)
    (kept,) = (tmp_path / "runs").glob("unfinished-*")
    seen = []

    def counts(self, trainer, module):
        seen.append(trainer.current_epoch)
        whole(self, trainer, module)

    monkeypatch.setattr(together.MemberNotes, "on_train_epoch_start", counts)
    choice = choose(BUILD, ["gelu", "relu"], PIXELS, folder=tmp_path, **options)
    assert seen == [2]
    assert not kept.exists()
    for one, other in zip(choice.candidates, wanted.candidates, strict=True):
        assert [(run.curves, run.orders) for run in one.runs] == [(run.curves, run.orders) for run in other.runs]
    torch.testing.assert_close(choice.module.state_dict(), wanted.module.state_dict(), rtol=0, atol=0)


def test_runs_with_other_settings_are_refused(tmp_path):
    options = QUICK | {"max_epochs": 1, "folder": tmp_path}
    choose(ConvNet, ["gelu", "relu"], Stripes(), **options)
    with pytest.raises(ChoiceArgumentError, match=r"runs with trainer.max_epochs=.*now it is.*Give another folder"):
        choose(ConvNet, ["gelu", "relu"], Stripes(), **options | {"max_epochs": 2})
    with pytest.raises(ChoiceArgumentError, match="data_arguments"):
        choose(ConvNet, ["gelu", "relu"], Stripes(batch_size=8), **options)


class OtherStripes(OrdinaryStripes):
    """Ordinary data with noise, and with a factor that no loader shows."""

    def __init__(self, noise=1.5, factor=1.0):
        super().__init__()
        self.inner = Stripes(noise=noise)
        self.factor = factor

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return [self.factor * batch[0], batch[1]]


class Streamed(OtherStripes):
    """The same as a stream, of which nobody knows how long it is."""

    def train_dataloader(self):
        images, labels = self.sets[0].tensors
        batches = [(images[place : place + 16], labels[place : place + 16]) for place in range(0, 96, 16)]
        return torch.utils.data.DataLoader(Stream(batches), batch_size=None, generator=torch.Generator())


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


class Weighted(OtherStripes):
    """The same drawn by weights."""

    def __init__(self, weight):
        super().__init__()
        self._weight = weight

    def train_dataloader(self):
        sampler = torch.utils.data.WeightedRandomSampler([self._weight] * 48 + [1.0] * 48, 96)
        return torch.utils.data.DataLoader(self.sets[0], 16, sampler=sampler)


NOT_TRAINED = {"side_effect": AssertionError("trained")}


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (lambda: Stripes(noise=1.5), lambda: Stripes(noise=0.5), "samples.train="),
        (lambda: OtherStripes(1.5), lambda: OtherStripes(0.5), "samples.train="),
        (lambda: OtherStripes(factor=1.0), lambda: OtherStripes(factor=2.0), "samples.data.factor='1.0'"),
        (lambda: Streamed(1.5), lambda: Streamed(0.5), "samples.train="),
        (lambda: Weighted(1.0), lambda: Weighted(3.0), "samples.train="),
        (lambda: OtherStripes(), lambda: OrdinaryStripes(), "data="),
    ],
)
def test_runs_of_other_data_are_refused(tmp_path, one, other, said):
    options = QUICK | {"max_epochs": 1, "folder": tmp_path, "metric": "val_loss"}
    data = one()
    first = choose(ConvNet, ["gelu", "relu"], data, **options)
    with mock.patch.object(Trainer, "fit", **NOT_TRAINED):
        for same in (data, one()):
            again = choose(ConvNet, ["gelu", "relu"], same, **options)
            assert (again.trained, again.notes) == ("Nothing was trained: all runs were there.", first.notes)
        with pytest.raises(ChoiceArgumentError, match=f"runs with {said}"):
            choose(ConvNet, ["gelu", "relu"], other(), **options)


def test_telling_data_takes_no_random_numbers_of_the_runs(tmp_path):
    data = OtherStripes()
    choice = choose(ConvNet, ["gelu", "relu"], data, metric="val_loss", folder=tmp_path, **QUICK)
    check_by_hand(choice, ConvNet, OtherStripes(), "val_loss", 2)


class Configured(ConvNet):
    """A net that is given its sizes by an object."""

    def __init__(self, activation="gelu", config=None):
        super().__init__(activation, config.width)


def sized(width):
    """Return a configuration of a net."""
    return SimpleNamespace(width=width, inner=SimpleNamespace(widths=[width]))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda width: functools.partial(Configured, config=sized(width)), "arguments.config="),
        (lambda width: functools.partial(ConvNet, width=width), "arguments.width="),
        (lambda width: lambda activation: ConvNet(activation, width), "build="),
    ],
)
def test_runs_of_other_build_arguments_are_refused(tmp_path, build, said):
    options = QUICK | {"max_epochs": 1, "folder": tmp_path}
    choose(build(4), ["gelu", "relu"], Stripes(), **options)
    with mock.patch.object(Trainer, "fit", **NOT_TRAINED):
        assert "all runs were there" in choose(build(4), ["gelu", "relu"], Stripes(), **options).trained
        with pytest.raises(ChoiceArgumentError, match=f"runs with {said}"):
            choose(build(2), ["gelu", "relu"], Stripes(), **options)


def test_what_cannot_be_told_is_said_where_runs_are_taken(tmp_path):
    options = QUICK | {"max_epochs": 1, "folder": tmp_path}
    config = SimpleNamespace(width=4, lock=threading.Lock())
    build = functools.partial(Configured, config=config)
    assert choose(build, ["gelu", "relu"], Stripes(), **options).notes == []
    (note,) = choose(build, ["gelu", "relu"], Stripes(), **options).notes
    assert note.startswith("Of _thread.lock nothing but the type can be compared")


def test_further_settings_are_compared(tmp_path):
    options = QUICK | {"max_epochs": 1, "folder": tmp_path}
    choose(ConvNet, ["gelu", "relu"], Stripes(), **options, settings={"code": {"version": 1}})
    with pytest.raises(ChoiceArgumentError, match=r"runs with settings\.code\.version='1'; now it is '2'"):
        choose(ConvNet, ["gelu", "relu"], Stripes(), **options, settings={"code": {"version": 2}})


class OtherTest(Stripes):
    """The same data with another test set."""

    def load_test(self):
        return self._made(3, 40)


@pytest.mark.parametrize("together", [True, False])
def test_kept_runs_are_tested_where_a_test_is_wanted_later(tmp_path, together):
    options = QUICK | {"folder": tmp_path, "together": together}
    choose(ConvNet, ["gelu", "relu"], Stripes(), **options)
    lines = []
    with mock.patch.object(Trainer, "fit", **NOT_TRAINED):
        choice = choose(ConvNet, ["gelu", "relu"], Stripes(), metric="test_acc", say=lines.append, **options)
    assert lines == [f"{name}, seed {seed}: tested" for name in ("gelu", "relu") for seed in (0, 1)]
    check_by_hand(choice, ConvNet, Stripes(), "test_acc", 2, test=True)
    again = choose(ConvNet, ["gelu", "relu"], Stripes(), metric="test_acc", say=lines.append, **options)
    assert len(lines) == 4
    assert again.to_json() == choice.to_json()


def test_another_test_set_is_tested_on(tmp_path):
    options = QUICK | {"folder": tmp_path, "metric": "test_acc", "max_epochs": 1}
    data = Stripes()
    first = choose(ConvNet, ["gelu", "relu"], data, **options)
    data.test_set = OtherTest().load_test()
    with mock.patch.object(Trainer, "fit", **NOT_TRAINED):
        second = choose(ConvNet, ["gelu", "relu"], data, **options)
    check_by_hand(first, ConvNet, Stripes(), "test_acc", 1, test=True)
    check_by_hand(second, ConvNet, OtherTest(), "test_acc", 1, test=True)


def test_a_kept_run_that_cannot_be_loaded_for_its_test_is_made_again(tmp_path):
    options = QUICK | {"folder": tmp_path}
    choose(ConvNet, ["gelu", "relu"], Stripes(), **options)
    for path in (tmp_path / "runs").glob("gelu-*-1.ckpt"):
        path.write_bytes(b"damaged")
    choice = choose(ConvNet, ["gelu", "relu"], Stripes(), metric="test_acc", **options)
    check_by_hand(choice, ConvNet, Stripes(), "test_acc", 2, test=True)


def interrupted(folder, names, monkeypatch):
    """Begin a group and stop it in its second epoch; return its file."""
    with monkeypatch.context() as changed:
        changed.setattr(together, "SAVE_EVERY", -1.0)
        whole = together.MemberNotes.on_train_epoch_start

        def stops(self, trainer, module):
            if trainer.current_epoch == 1:
                raise SystemExit
            whole(self, trainer, module)

        changed.setattr(together.MemberNotes, "on_train_epoch_start", stops)
        with pytest.raises(SystemExit):
            choose(BUILD, names, PIXELS, folder=folder, **QUICK)
    (kept,) = (folder / "runs").glob("unfinished-*")
    return kept


@pytest.mark.parametrize("side_by_side", [True, False])
def test_an_interrupted_group_goes_where_its_runs_are_made_otherwise(tmp_path, monkeypatch, side_by_side):
    kept = interrupted(tmp_path, ["gelu", "relu"], monkeypatch)
    choose(BUILD, ["elu", "silu"], PIXELS, folder=tmp_path, **QUICK)
    assert kept.exists()  # its call may go on
    choose(BUILD, ["gelu", "silu"], PIXELS, folder=tmp_path, together=side_by_side, **QUICK)
    assert not kept.exists()
    assert not list((tmp_path / "runs").glob("unfinished-*"))


def test_a_damaged_group_goes(tmp_path):
    options = QUICK | {"max_epochs": 1, "folder": tmp_path}
    choose(ConvNet, ["gelu", "relu"], Stripes(), **options)
    contents = [b"", b"no archive"]
    for number, content in enumerate(contents):
        (tmp_path / f"runs/unfinished-{number}.ckpt").write_bytes(content)
    for number, plain in enumerate([{}, {"callbacks": 3}, {"callbacks": {"MemberNotes": {"runs": [[1]]}}}], 2):
        torch.save(plain, tmp_path / f"runs/unfinished-{number}.ckpt")
    choose(ConvNet, ["gelu", "relu"], Stripes(), **options)
    assert not list((tmp_path / "runs").glob("unfinished-*"))


def test_one_comparison_at_a_time_in_a_folder(tmp_path):
    options = QUICK | {"max_epochs": 1, "folder": tmp_path, "together": False}
    refused = []

    def another(line):
        with pytest.raises(FolderInUseError, match="Another comparison is at work in") as error:
            choose(ConvNet, ["gelu", "relu"], Stripes(), **options)
        refused.append(error)

    choose(ConvNet, ["gelu", "relu"], Stripes(), **options, say=another)
    assert len(refused) == 4
    assert "all runs were there" in choose(ConvNet, ["gelu", "relu"], Stripes(), **options).trained


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"curves": {"val_loss": ["x"]}, "test": {}}'])
def test_a_damaged_run_is_made_again(tmp_path, damage):
    options = QUICK | {"max_epochs": 1, "folder": tmp_path}
    first = choose(ConvNet, ["gelu", "relu"], Stripes(), **options)
    for path in (tmp_path / "runs").glob("gelu*.json"):
        path.write_text(damage)
    again = choose(ConvNet, ["gelu", "relu"], Stripes(), **options)
    assert {c.label: c.values(first.metric) for c in first.candidates} == {
        c.label: c.values(again.metric) for c in again.candidates
    }


def test_a_curvature_that_nobody_knows_is_said():
    with activations.registry.scope():
        activations.register("wavy")(lambda x: x + torch.sin(x) / 2)
        options = {"seeds": 2, "max_epochs": 1, "trainer": CPU, "seconds": 0.01, "metric": "val_loss"}
        choice = choose(ConvNet, ["gelu", "wavy"], Stripes(), **options)
    (note,) = choice.notes
    assert note.startswith("The mean curvature of wavy is not known, because nothing says where its f' jumps.")


@pytest.mark.parametrize(
    ("build", "data", "classes"),
    [pytest.param(BUILD, PIXELS, 10, marks=pytest.mark.full, id="task"), pytest.param(ConvNet, Stripes(), 2, id="own")],
)
def test_measured_and_written(tmp_path, build, data, classes):
    choice = choose(
        build, ["gelu", "relu"], data, seeds=2, max_epochs=1, trainer=CPU, folder=tmp_path, seconds=0.05,
        metric="val_loss",
    )  # fmt: skip
    assert choice.notes == []
    for candidate in choice.candidates:
        assert 0 < candidate.step_seconds < 10
        assert 0 < candidate.latency_seconds < 10
        assert candidate.kept_bytes > 1000
        assert {"top_eigenvalue", "trace", "curvature", "share_saturated"} == candidate.bends.keys()
        assert all(map(math.isfinite, candidate.bends.values()))
    plain = json.loads((tmp_path / "choice.json").read_text())
    assert plain["best"]["label"] == choice.best.label
    assert plain["verdict"] == choice.verdict
    assert [entry["values"] for entry in plain["candidates"]] == [c.values(choice.metric) for c in choice.candidates]
    for name in plain["files"].values():
        assert (tmp_path / name).stat().st_size > 100
    for picture in ("curves", "differences"):
        assert (tmp_path / plain["files"][picture]).read_bytes().startswith(b"\x89PNG")
    data.setup("test")
    images = data.test_set.inputs[:3]
    predict = OnnxPredictor(tmp_path / "best.onnx")
    with torch.no_grad():
        torch.testing.assert_close(predict(images), choice.module(images), rtol=1e-4, atol=1e-5)
    assert predict(images).shape == (3, classes)
    assert json.loads((tmp_path / "best.parity.json").read_text())["passed"]
    saved = torch.load(tmp_path / "best.ckpt", weights_only=True)
    torch.testing.assert_close(dict(saved["state_dict"]), dict(choice.module.state_dict()), rtol=0, atol=0)
    text = str(choice)
    assert text.splitlines()[0].split()[:3] == ["activation", "median", "val_loss"]
    assert all(unit in text for unit in ("ms/step", "MB/step", "ms/row"))
