"""`lit-gelu choose`: a configuration of `lit-gelu fit`, one's own module, and what is refused before training."""

import json
import os
from functools import partial
from unittest import mock

import blank_pictures
import pytest
import torch
from choice_nets import CPU, ConvNet, Stripes, by_hand
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau

from lit_gelu.callbacks.checkpoint_file import read_checkpoint
from lit_gelu.choose.metric import Metric
from lit_gelu.choose.outcome import ActivationChoice, CandidateReport
from lit_gelu.choose.run_files import TrainedRun
from lit_gelu.choose.run_maker import RunMaker
from lit_gelu.cli import choose, model_builder
from lit_gelu.cli.main import main

OWN = """
from choice_nets import FixedNet, ConvNet, OrdinaryStripes, Stripes


class Ordinary(OrdinaryStripes):
    def __init__(self, noise: float = 1.0, name: str = ""):
        super().__init__()
        self.inner = Stripes(noise=noise)
"""
CONFIG = """
seed_everything: 0
ckpt_path: null
weights_only: null
model:
  class_path: own.ConvNet
  init_args: {activation: relu, width: 3}
data:
  class_path: own.Stripes
  init_args: {noise: 1.0}
trainer:
  max_epochs: 2
  accelerator: cpu
  logger: {class_path: lightning.pytorch.loggers.CSVLogger, init_args: {save_dir: runs}}
  callbacks:
    - {class_path: lightning.pytorch.callbacks.ModelCheckpoint, init_args: {monitor: val_loss}}
"""


@pytest.fixture(autouse=True)
def _own_folder(request, tmp_path, monkeypatch):
    blank_pictures.leave_blank(request, monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "my.yaml").write_text(CONFIG)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.delenv(name, raising=False)
    yield
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        os.environ.pop(name, None)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--activations", "gelu", "elu(alpha=0.5)", "--x"], ['--activations=["gelu", "elu(alpha=0.5)"]', "--x"]),
        (["--activations", "gelu"], ['--activations=["gelu"]']),
        (["--activations", '["gelu", "relu"]'], ["--activations", '["gelu", "relu"]']),
        (["--activations=[gelu, relu]"], ["--activations=[gelu, relu]"]),
        (["--seeds", "5"], ["--seeds", "5"]),
        (["--seeds", "1", "4", "--config", "a"], ["--seeds=[1, 4]", "--config", "a"]),
        (["--seeds"], ["--seeds"]),
    ],
)  # fmt: skip
def test_several_words_behind_an_option_are_one_list(words, wanted):
    assert choose.gathered(words) == wanted


def small():
    """Return a result without any training."""
    reports = []
    for label, values in {"gelu": [0.1, 0.2], "relu": [0.3, 0.4]}.items():
        runs = [TrainedRun(label, label, seed) for seed in (0, 1)]
        for run, value in zip(runs, values, strict=True):
            run.add_epoch(1, {"val_loss": value})
        reports.append(CandidateReport(label, label, runs))
    return ActivationChoice(Metric("val_loss", "val", "min"), [0, 1], reports)


def test_a_configuration_of_fit_says_what_is_trained(capsys):
    with mock.patch.object(choose, "compare", return_value=small()) as compare:
        words = "choose --config my.yaml --activations gelu relu --seeds 2 --metric val_loss --output here"
        code = main(words.split())
    assert code == 0
    (build, names, data), options = compare.call_args
    assert names == ["gelu", "relu"]
    assert (data.noise, options["max_epochs"], options["seeds"], options["folder"]) == (1.0, 2, 2, "here")
    assert options["trainer"] == {"accelerator": "cpu"}
    built = build(activation="silu")
    assert type(built).__name__ == "ConvNet"
    assert built.net[0].out_channels == 3
    assert type(built.net[1]).__name__ == "SiLU"
    printed = capsys.readouterr().out
    assert "Not used here: trainer.logger, ModelCheckpoint." in printed
    assert "2 seeds are too few for an interval" in printed
    assert [line.split()[:2] for line in printed.splitlines() if line.startswith(("gelu", "relu"))] == [
        ["gelu", "0.15"],
        ["relu", "0.35"],
    ]


def test_callbacks_of_the_configuration_are_given_on():
    early = "{class_path: lightning.pytorch.callbacks.EarlyStopping, init_args: {monitor: val_loss}}"
    with mock.patch.object(choose, "compare", return_value=small()) as compare:
        assert (
            main(["choose", "--config", "my.yaml", f"--trainer.callbacks+={early}", "--activations", "gelu", "relu"])
            == 0
        )
    assert [type(each).__name__ for each in compare.call_args.kwargs["trainer"]["callbacks"]] == ["EarlyStopping"]


def test_what_has_no_logger_is_left_out_and_named(capsys):
    """Lightning refuses a LearningRateMonitor in a Trainer without a logger: every run would fail."""
    rates = "lightning.pytorch.callbacks.LearningRateMonitor"
    words = "choose --config my.yaml --activations gelu relu --seeds 2 --metric val_loss --measure false --output here"
    assert main([*words.split(), "--trainer.max_epochs", "1", f"--trainer.callbacks+={rates}"]) == 0
    printed = capsys.readouterr().out
    assert "Not used here: trainer.logger, ModelCheckpoint, LearningRateMonitor." in printed
    assert "Trained side by side" in printed


OVERRIDDEN = pytest.mark.filterwarnings("ignore:.*will be overridden by `LitGeluCLI.configure_optimizers`")
SGD = ["--optimizer", "SGD", "--optimizer.lr", "0.05", "--optimizer.momentum", "0.5"]


class BySgd(ConvNet):
    """The same net with the optimizer of the command line, and a schedule, written in Python."""

    def __init__(self, activation="gelu", schedule=None):
        super().__init__(activation, width=3)
        self.schedule = schedule

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.5)
        if self.schedule is None:
            return optimizer
        schedule = self.schedule(optimizer)
        monitor = {"monitor": "val_loss"} if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau) else {}
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, **monitor}}


@pytest.mark.one_in(3)
@OVERRIDDEN
@pytest.mark.parametrize("together", ["true", "false"])
@pytest.mark.parametrize(
    ("words", "schedule"),
    [
        ([], None),
        (["--lr_scheduler=ExponentialLR", "--lr_scheduler.gamma=0.5"], partial(ExponentialLR, gamma=0.5)),
        (
            ["--lr_scheduler=ReduceLROnPlateau", "--lr_scheduler.monitor=val_loss", "--lr_scheduler.patience=0",
             "--lr_scheduler.threshold=0.9"],
            partial(ReduceLROnPlateau, patience=0, threshold=0.9),
        ),
    ],
)  # fmt: skip
def test_runs_have_the_optimizer_of_the_command_line(tmp_path, capsys, together, words, schedule):
    given = "choose --config my.yaml --activations gelu relu --seeds 2 --metric val_loss --measure false --output here"
    assert main([*given.split(), "--together", together, *SGD, *words]) == 0
    side_by_side = "Trained side by side" in capsys.readouterr().out
    assert side_by_side == (together == "true")
    plain = json.loads((tmp_path / "here/choice.json").read_text())
    for candidate in plain["candidates"]:
        for seed, value in enumerate(candidate["values"]):
            build = partial(BySgd, schedule=schedule)
            assert value == by_hand(build, candidate["label"], seed, Stripes(noise=1.0), 2, **CPU).logged["val_loss"]


@OVERRIDDEN
def test_an_optimizer_trains_what_a_swap_has_brought_in(tmp_path):
    words = (
        "choose --model own.FixedNet --data own.Stripes --activations prelu gelu --swap true --seeds 2 --output here"
    )
    options = ["--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--measure=false", "--metric=val_loss", *SGD]
    assert main([*words.split(), *options]) == 0
    for path in (tmp_path / "here/runs").glob("prelu-*.ckpt"):
        (slope,) = (
            value
            for name, value in read_checkpoint(path)["state_dict"].items()
            if name.startswith("net.1.") and name.endswith("weight")
        )
        assert slope.item() != 0.25  # what PReLU begins with


@OVERRIDDEN
def test_runs_of_another_optimizer_are_refused(capsys):
    words = "choose --config my.yaml --activations gelu relu --seeds 2 --metric val_loss --measure false --output here"
    assert main([*words.split(), *SGD]) == 0
    with mock.patch.object(RunMaker, "make", side_effect=AssertionError("trained")):
        assert main([*words.split(), *SGD, "--optimizer.lr", "0.1"]) == 2
        assert "arguments.optimizer.init_args.lr='0.05'; now it is '0.1'" in capsys.readouterr().err
        assert main(words.split()) == 2
    assert "arguments.optimizer=" in capsys.readouterr().err


def test_a_schedule_without_an_optimizer_is_named(capsys):
    with mock.patch.object(choose, "compare", return_value=small()):
        words = "choose --config my.yaml --activations gelu relu --lr_scheduler ExponentialLR --lr_scheduler.gamma .5"
        assert main(words.split()) == 0
    assert "Not used here: trainer.logger, ModelCheckpoint, lr_scheduler without optimizer." in capsys.readouterr().out


def test_from_a_configuration_to_files(tmp_path, capsys):
    words = "choose --config my.yaml --activations gelu relu --seeds 2 --metric val_acc --measure false --output here"
    assert main([*words.split(), "--trainer.max_epochs", "1"]) == 0
    plain = json.loads((tmp_path / "here/choice.json").read_text())
    assert plain["metric"] == {"name": "val_acc", "stage": "val", "mode": "max"}
    assert [len(candidate["values"]) for candidate in plain["candidates"]] == [2, 2]
    assert (tmp_path / "here/best.ckpt").is_file()
    assert "Trained side by side" in capsys.readouterr().out
    assert main([*words.split(), "--trainer.max_epochs", "1"]) == 0
    assert "all runs were there" in capsys.readouterr().out


OWN_DATA = ["--data", "own.Ordinary"]
EARLY = "{class_path: lightning.pytorch.callbacks.EarlyStopping, init_args: {monitor: val_loss, patience: %d}}"


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (["--data.noise", ".1"], ["--data.noise", ".5"], "samples.train="),
        (["--model.width", "3"], ["--model.width", "5"], "arguments.1.width='3'; now it is '5'"),
        ([*OWN_DATA, "--data.noise", ".1"], [*OWN_DATA, "--data.noise", ".5"], "samples.train="),
        ([*OWN_DATA, "--data.name", "a"], [*OWN_DATA, "--data.name", "b"], "settings.data.init_args.name="),
        ([f"--trainer.callbacks+={EARLY % 3}"], [f"--trainer.callbacks+={EARLY % 4}"], "settings.trainer.callbacks="),
        (["--trainer.deterministic", "true"], [], "settings.trainer.deterministic="),
    ],
)
def test_runs_of_another_configuration_are_refused(one, other, said, capsys):
    words = "choose --config my.yaml --activations gelu relu --seeds 2 --metric val_loss --measure false --output here"
    before = [*words.split(), "--trainer.max_epochs", "1"]
    assert main([*before, *one]) == 0
    same = ["--trainer.logger", "false", "--model.activation", "silu"]  # which decide nothing
    assert main([*before, *one, *same]) == 0
    assert "all runs were there" in capsys.readouterr().out
    with mock.patch.object(RunMaker, "make", side_effect=AssertionError("trained")):
        assert main([*before, *other]) == 2
    assert f"runs with {said}" in capsys.readouterr().err


def lines_more(class_path, arguments, activation=None, **optimizers):
    """Return what the builder returns, by other code."""
    import own

    assert not optimizers
    assert class_path == "own.ConvNet"
    return own.ConvNet(activation=activation, **arguments)


def test_runs_stay_where_the_code_of_the_command_changes(tmp_path, capsys, monkeypatch):
    words = "choose --config my.yaml --activations gelu relu --seeds 2 --metric val_loss --measure false --output here"
    assert main(words.split()) == 0
    monkeypatch.setattr(model_builder, "_built", lines_more)
    assert main(words.split()) == 0
    assert "all runs were there" in capsys.readouterr().out


BUILT = "lit_gelu.cli.%s._built(code='5fc3d8460ba35966', defaults=[[None], None])"


def test_runs_of_a_folder_that_was_begun_before_are_taken(tmp_path, capsys):
    """Settings as an earlier lit-gelu wrote them: with a digest of its own code."""
    words = "choose --config my.yaml --activations gelu relu --seeds 2 --metric val_loss --measure false --output here"
    assert main(words.split()) == 0
    path = tmp_path / "here/runs/settings.json"
    kept = json.loads(path.read_text())
    assert kept["arguments"] == {"0": "'own.ConvNet'", "1": {"width": "3", "rate": "0.003"}}
    with mock.patch.object(RunMaker, "_made", side_effect=AssertionError("trained")):
        for module in ("choose", "model_builder"):
            path.write_text(json.dumps(kept | {"build": BUILT % module}))
            assert main(words.split()) == 0
            assert "all runs were there" in capsys.readouterr().out
        assert main([*words.split(), "--model.width", "5"]) == 2
        assert "arguments.1.width='3'; now it is '5'" in capsys.readouterr().err
        path.write_text(json.dumps(kept | {"build": "own.ConvNet"}))
        assert main(words.split()) == 2
        assert "build='own.ConvNet'; now it is 'a configuration of lit-gelu fit'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--activations gelu gelo", "gelo"),
        ("--activations gelu relu --seeds 1", "no interval is possible"),
        ("--activations gelu relu --metric val_eror", "val_eror"),
        ("--activations gelu relu --model own.FixedNet", "Give --swap true"),
        ("--activations gelu relu --ckpt_path a.ckpt", "begins anew"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(words, said, capsys):
    config = "" if "FixedNet" in words else "--config my.yaml "
    data = "--data own.Stripes " if "FixedNet" in words else ""
    with mock.patch.object(RunMaker, "make", side_effect=AssertionError("trained")):
        assert main(f"choose {config}{words} {data}--trainer.accelerator cpu".split()) == 2
    assert said in capsys.readouterr().err


def test_the_activations_of_a_net_that_takes_none_are_exchanged():
    words = "choose --model own.FixedNet --data own.Stripes --activations gelu relu --swap true"
    with mock.patch.object(choose, "compare", return_value=small()) as compare:
        assert main(words.split()) == 0
    (build, *_), options = compare.call_args
    assert options["swap"] is True
    assert type(build()).__name__ == "FixedNet"
