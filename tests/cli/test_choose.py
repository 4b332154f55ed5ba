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

from lit_gelu.choose import ActivationChoice, CandidateReport, Metric, TrainedRun, training
from lit_gelu.cli import choose
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
    assert choose.with_lists(words) == wanted


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
    assert "Not used here: trainer.logger." in printed
    assert "Not used here: ModelCheckpoint." in printed
    assert "2 seeds are too few for an interval" in printed
    assert [line.split()[:2] for line in printed.splitlines() if line.startswith(("gelu", "relu"))] == [
        ["gelu", "0.15"],
        ["relu", "0.35"],
    ]


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


@OVERRIDDEN
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
def test_runs_have_the_optimizer_of_the_command_line(tmp_path, words, schedule):
    given = "choose --config my.yaml --activations gelu relu --seeds 2 --metric val_loss --output here"
    assert main([*given.split(), "--together", "false", *SGD, *words]) == 0
    plain = json.loads((tmp_path / "here/choice.json").read_text())
    for candidate in plain["candidates"]:
        for seed, value in enumerate(candidate["values"]):
            build = partial(BySgd, schedule=schedule)
            assert value == by_hand(build, candidate["label"], seed, Stripes(noise=1.0), 2, **CPU).logged["val_loss"]


def test_from_a_configuration_to_files(tmp_path, capsys):
    words = "choose --config my.yaml --activations gelu relu --seeds 2 --metric val_acc --output here"
    assert main([*words.split(), "--trainer.max_epochs", "1"]) == 0
    plain = json.loads((tmp_path / "here/choice.json").read_text())
    assert plain["metric"] == {"name": "val_acc", "stage": "val", "mode": "max"}
    assert [len(candidate["values"]) for candidate in plain["candidates"]] == [2, 2]
    assert (tmp_path / "here/best.ckpt").is_file()
    assert "Trained side by side" in capsys.readouterr().out


@OVERRIDDEN
def test_runs_of_another_configuration_are_refused_and_others_taken(capsys):
    words = "choose --config my.yaml --activations gelu relu --seeds 2 --metric val_loss --output here"
    assert main(words.split()) == 0
    same = ["--trainer.logger", "false", "--model.activation", "silu"]  # which decide nothing
    assert main([*words.split(), *same]) == 0
    assert "all runs were there" in capsys.readouterr().out
    with mock.patch.object(training, "train_together", side_effect=SystemExit(7)):
        for other in (["--data.noise", ".5"], ["--model.width", "5"], ["--trainer.deterministic", "true"], SGD):
            assert main([*words.split(), *other]) == 2


@pytest.mark.parametrize(
    "words",
    [
        "--activations gelu gelo",
        "--activations gelu relu --seeds 1",
        "--activations gelu relu --metric val_eror",
        "--activations gelu relu --model own.FixedNet",
        "--activations gelu relu --ckpt_path a.ckpt",
    ],
)
def test_mistakes_are_told_before_anything_is_trained(words, capsys):
    config = "" if "FixedNet" in words else "--config my.yaml "
    data = "--data own.Stripes " if "FixedNet" in words else ""
    with mock.patch.object(training, "train_together", side_effect=SystemExit(7)):
        assert main(f"choose {config}{words} {data}--trainer.accelerator cpu".split()) == 2
    assert "lit-gelu choose: " in capsys.readouterr().err


def test_the_activations_of_a_net_that_takes_none_are_exchanged():
    words = "choose --model own.FixedNet --data own.Stripes --activations gelu relu --swap true"
    with mock.patch.object(choose, "compare", return_value=small()) as compare:
        assert main(words.split()) == 0
    (build, *_), options = compare.call_args
    assert options["swap"] is True
    assert type(build()).__name__ == "FixedNet"
