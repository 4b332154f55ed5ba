"""Runs that `choose` keeps in a folder: taken again, refused, tested later; and what an interruption leaves."""

import functools
import json
import threading
import warnings
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from choice_nets import BUILD, CPU, ConvNet, OrdinaryStripes, Stripes, check_by_hand
from lightning.pytorch.callbacks import EarlyStopping

from lit_gelu.choose import ChoiceArgumentError, FolderInUseError, choose, run_maker, together
from lit_gelu.choose.plain_text import told
from lit_gelu.choose.run_maker import RunMaker

PIXELS = Stripes(size=28)
QUICK = {"seeds": 2, "max_epochs": 2, "trainer": CPU, "measure": False}


@pytest.fixture(autouse=True)
def _lightnings_advice():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(num_workers|LeafSpec|number of training batches)")
        yield


def test_finished_runs_are_kept(tmp_path):
    lines = []
    options = QUICK | {"max_epochs": 1, "together": False, "folder": tmp_path}
    real = run_maker.train_alone
    counted = mock.Mock(side_effect=[None, None, SystemExit])

    def train_alone(*given):
        counted()
        return real(*given)

    with mock.patch.object(run_maker, "train_alone", train_alone), pytest.raises(SystemExit):
        choose(ConvNet, ["gelu", "relu"], Stripes(), **options, say=lines.append)
    assert [line.split(":")[0] for line in lines] == ["gelu, seed 0", "gelu, seed 1"]
    counted = mock.Mock()
    with mock.patch.object(run_maker, "train_alone", train_alone):
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


@pytest.mark.one_in(3)
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
    with mock.patch.object(RunMaker, "_made", **NOT_TRAINED):
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


@pytest.mark.one_in(2)
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
    with mock.patch.object(RunMaker, "_made", **NOT_TRAINED):
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


@pytest.mark.parametrize("given", [lambda: EarlyStopping("val_loss"), lambda: [EarlyStopping("val_loss")], list])
def test_callbacks_are_compared_as_they_were_given(tmp_path, given):
    options = QUICK | {"max_epochs": 1, "folder": tmp_path, "together": False}
    choose(ConvNet, ["gelu", "relu"], Stripes(), **options | {"trainer": CPU | {"callbacks": given()}})
    kept = json.loads((tmp_path / "runs/settings.json").read_text())
    assert kept["trainer"]["callbacks"] == told(given(), [])
    choice = choose(ConvNet, ["gelu", "relu"], Stripes(), **options | {"trainer": CPU | {"callbacks": given()}})
    assert "all runs were there" in choice.trained


class OtherTest(Stripes):
    """The same data with another test set."""

    def load_test(self):
        return self._made(3, 40)


@pytest.mark.parametrize("together", [True, False])
def test_kept_runs_are_tested_where_a_test_is_wanted_later(tmp_path, together):
    options = QUICK | {"folder": tmp_path, "together": together}
    choose(ConvNet, ["gelu", "relu"], Stripes(), **options)
    lines = []
    with mock.patch.object(RunMaker, "_made", **NOT_TRAINED):
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
    with mock.patch.object(RunMaker, "_made", **NOT_TRAINED):
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


@pytest.mark.one_in(2)
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
