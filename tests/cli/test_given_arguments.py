"""Arguments of the model beside `--ckpt_path`: refused as options, told of a configuration, quiet where they agree."""

import csv
import os
import sys
import threading
from pathlib import Path

import pytest
import torch
import yaml
from cli_helpers import FAST, forget_seeds
from lightning.pytorch import Trainer

from lit_gelu.cli.given_arguments import written_options
from lit_gelu.cli.main import main
from lit_gelu.data import DigitsData
from lit_gelu.tasks import MNISTClassifier

DIFFERS = "is built as it was trained"
SHORT = [*FAST, "--trainer.max_epochs=1"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("nested_cli_module", None)
    forget_seeds()


@pytest.fixture
def checkpoint():
    """A checkpoint as a Trainer in a script writes it: arguments, but no class."""
    trainer = Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
    torch.manual_seed(0)
    trainer.strategy.connect(MNISTClassifier("elu(alpha=0.5)", learning_rate=0.002, hidden_layers=2))
    trainer.save_checkpoint("last.ckpt")
    return "last.ckpt"


@pytest.mark.parametrize("command", ["fit", "test"])
@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--model.activation=relu", "--model.activation 'relu', but the checkpoint has 'elu(alpha=0.5)'"),
        ("--model.activation=elu", "--model.activation 'elu', but the checkpoint has 'elu(alpha=0.5)'"),
        ("--model.learning_rate=1e-5", "--model.learning_rate 1e-05, but the checkpoint has 0.002"),
        ("--model.init_args.hidden_layers=3", "--model.init_args.hidden_layers 3, but the checkpoint has 2"),
    ],
)
def test_an_option_that_differs_is_refused(command, option, says, checkpoint, tmp_path, capsys):
    assert main([command, *SHORT, f"--ckpt_path={checkpoint}", option]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Leave them out." in error
    assert "load_from_checkpoint('last.ckpt'" in error
    assert not list(tmp_path.rglob("config.yaml"))


def test_another_class_is_refused(capsys):
    quick = ["--model.hidden_layers=1", "--trainer.limit_train_batches=1", "--trainer.log_every_n_steps=1"]
    assert main(["fit", *SHORT, *quick]) == 0
    (path,) = map(str, Path().rglob("*.ckpt"))
    capsys.readouterr()
    assert main(["test", *SHORT, "--model=TweetTagger", f"--ckpt_path={path}"]) == 2
    says = "--model lit_gelu.tasks.TweetTagger, but the checkpoint has lit_gelu.tasks.MNISTClassifier"
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("activation", ["elu(alpha=0.5)", "elu( alpha = 0.50 )", "{name: elu, alpha: 0.5}"])
def test_an_option_that_agrees_is_quiet(activation, checkpoint, recwarn):
    given = [f"--model.activation={activation}", "--model.learning_rate=2e-3", "--model.hidden_layers=2"]
    assert main(["test", *SHORT, f"--ckpt_path={checkpoint}", *given]) == 0
    assert not [warning for warning in recwarn if DIFFERS in str(warning.message)]


@pytest.mark.filterwarnings("ignore:The dirpath has changed from")
def test_the_configuration_that_made_the_checkpoint_is_quiet(recwarn):
    model = {"class_path": "MNISTClassifier", "init_args": {"activation": "quick_gelu", "hidden_layers": 1}}
    Path("own.yaml").write_text(yaml.safe_dump({"model": model}))
    assert main(["fit", *SHORT, "--config=own.yaml", "--model.learning_rate=1e-4"]) == 0
    (path,) = map(str, Path().rglob("*.ckpt"))
    config = next(Path().rglob("config.yaml"))  # every argument, as Lightning writes them
    for given in ("own.yaml", str(config)):
        assert main(["test", *SHORT, f"--config={given}", f"--ckpt_path={path}"]) == 0
        assert main(["fit", *SHORT, "--trainer.max_epochs=2", f"--config={given}", f"--ckpt_path={path}"]) == 0
    assert not [warning for warning in recwarn if DIFFERS in str(warning.message)]


def test_a_configuration_that_differs_is_told_and_the_checkpoint_counts(checkpoint, monkeypatch):
    # Of Lightning's calls; pytest.warns raises them anew, out of reach of the filters that let them pass.
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    model = {"class_path": "MNISTClassifier", "init_args": {"activation": "relu", "keep": 1.0, "hidden_layers": 2}}
    Path("own.yaml").write_text(yaml.safe_dump({"model": model}))
    says = r"model\.activation 'relu', but the checkpoint has 'elu\(alpha=0\.5\)'\.$"
    with pytest.warns(UserWarning, match=says):
        assert main(["test", *SHORT, "--config=own.yaml", f"--ckpt_path={checkpoint}"]) == 0
    with next(Path().rglob("metrics.csv")).open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["test_loss"]) == pytest.approx(loss_by_hand(checkpoint, torch.nn.functional.elu), rel=1e-4)


def loss_by_hand(checkpoint, elu):
    """The loss on the test set, of the weights alone: matrix products, and ELU with alpha = 0.5."""
    weights = torch.load(checkpoint, weights_only=True)["state_dict"]
    layers = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
    data = DigitsData()
    data.setup("test")
    batches = list(data.test_dataloader())
    x, labels = torch.cat([images for images, _ in batches]).flatten(1), torch.cat([labels for _, labels in batches])
    for layer in layers:
        x = x @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
        x = elu(x, alpha=0.5) if layer != layers[-1] else x
    return torch.nn.functional.cross_entropy(x, labels).item()


NESTED = """
from dataclasses import dataclass

from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import nn, optim


@dataclass
class Rate:
    first: float = 0.1
    last: float = 0.0


class Scale(nn.Module):
    def __init__(self, factor: float = 1.0, shift: float = 0.0):
        super().__init__()


class NestedNet(LightningModule):
    def __init__(self, part: nn.Module, rate: Rate = Rate(), optimizer: OptimizerCallable = optim.SGD):
        super().__init__()
        self.save_hyperparameters()
        self.layer, self.optimizer = nn.Linear(784, 10), optimizer

    def training_step(self, batch, number):
        return nn.functional.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])

    def test_step(self, batch, number):
        self.log("test_loss", self.training_step(batch, number))

    def configure_optimizers(self):
        return self.optimizer(self.parameters())
"""


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore:Attribute 'part' is an instance of")
@pytest.mark.parametrize("piped", [False, True])
def test_arguments_inside_arguments(piped, recwarn, capsys):
    Path("nested_cli_module.py").write_text(NESTED)
    part = {"class_path": "nested_cli_module.Scale", "init_args": {"factor": 2.0}}
    optimizer = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.2}}
    arguments = {"part": part, "rate": {"last": 0.5}, "optimizer": optimizer}
    Path("own.yaml").write_text(
        yaml.safe_dump({"model": {"class_path": "nested_cli_module.NestedNet", "init_args": arguments}})
    )
    given = "--import=nested_cli_module"
    assert main(["fit", *SHORT, given, "--config=own.yaml", "--trainer.limit_train_batches=1"]) == 0
    (path,) = map(str, Path().rglob("*.ckpt"))
    options = ["--model=nested_cli_module.NestedNet", "--model.part=nested_cli_module.Scale", "--model.part.factor=2.0"]
    assert main(["test", *SHORT, given, *options, "--model.rate.last=.5", f"--ckpt_path={path}"]) == 0
    configuration = Path("own.yaml")
    if piped:
        configuration = Path("pipe")
        os.mkfifo(configuration)
        threading.Thread(target=lambda: configuration.write_text(Path("own.yaml").read_text()), daemon=True).start()
    assert main(["test", *SHORT, given, f"--config={configuration}", f"--ckpt_path={path}"]) == 0
    assert not [warning for warning in recwarn if DIFFERS in str(warning.message)]
    capsys.readouterr()
    assert main(["test", *SHORT, given, *options, "--model.part.shift=1.0", f"--ckpt_path={path}"]) == 2
    assert "--model.part.shift" in capsys.readouterr().err


def test_options_as_written():
    words = ["--model=Net", "--model.keep", "0.5", "--model.init_args.noise=global", "--data.keep=1", "--modelled=1"]
    assert written_options(words) == {
        "class_path": "--model",
        "keep": "--model.keep",
        "noise": "--model.init_args.noise",
    }
    assert written_options(["--model.dict_kwargs.layers.width=3"]) == {"layers": "--model.dict_kwargs.layers.width"}
