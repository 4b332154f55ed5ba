"""`lit-gelu choose`: a configuration of `lit-gelu fit`, one's own module, and what is refused before training."""

import json
import os
from functools import partial
from unittest import mock

import blank_pictures
import pytest
import torch
from choice_nets import CPU, ConvNet, Stripes, by_hand
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lit_gelu.choose import training
from lit_gelu.cli.main import main

MODULE = """
from choice_nets import ConvNet, OrdinaryStripes, Stripes


class Opaque(ConvNet):
    def __init__(self, activation: str = "relu", **kwargs):
        options = {"width": 3}
        options.update(kwargs)
        super().__init__(activation, **options)


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
    (tmp_path / "own.py").write_text(MODULE)
    (tmp_path / "my.yaml").write_text(CONFIG)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.delenv(name, raising=False)
    yield
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        os.environ.pop(name, None)


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
        (
            ["--lr_scheduler=ReduceLROnPlateau", "--lr_scheduler.monitor=val_loss", "--lr_scheduler.patience=0",
             "--lr_scheduler.threshold=0.9"],
            partial(ReduceLROnPlateau, patience=0, threshold=0.9),
        ),
    ],
)  # fmt: skip
def test_runs_have_the_optimizer_of_the_command_line(tmp_path, words, schedule):
    command = "choose --config my.yaml --activations gelu relu --seeds 2 --metric val_loss --output here"
    assert main([*command.split(), "--together", "false", *SGD, *words]) == 0
    plain = json.loads((tmp_path / "here/choice.json").read_text())
    for candidate in plain["candidates"]:
        for seed, value in enumerate(candidate["values"]):
            build = partial(BySgd, schedule=schedule)
            assert value == by_hand(build, candidate["label"], seed, Stripes(noise=1.0), 2, **CPU).logged["val_loss"]


def test_from_a_configuration_to_files(tmp_path, capsys):
    opaque = CONFIG.replace("own.ConvNet", "own.Opaque").replace("width: 3}", "}\n  dict_kwargs: {width: 5}")
    (tmp_path / "other.yaml").write_text(opaque.replace("    - {", "    {"))  # a single callback is no list
    words = "choose --activations gelu relu --config other.yaml --seeds 2 --metric val_acc --output here"
    assert main([*words.split(), "--trainer.max_epochs", "1"]) == 0
    plain = json.loads((tmp_path / "here/choice.json").read_text())
    assert plain["metric"] == {"name": "val_acc", "stage": "val", "mode": "max"}
    assert [len(candidate["values"]) for candidate in plain["candidates"]] == [2, 2]
    weights = torch.load(tmp_path / "here/best.ckpt", weights_only=True)["state_dict"]
    assert len(next(iter(weights.values()))) == 5
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
        "--activations gelu relu --ckpt_path a.ckpt",
    ],
)
def test_mistakes_are_told_before_anything_is_trained(words, capsys):
    with mock.patch.object(training, "train_together", side_effect=SystemExit(7)):
        assert main(f"choose --config my.yaml {words}".split()) == 2
    assert "lit-gelu choose: " in capsys.readouterr().err
