"""Checkpoints that name programs: every command and function that reads one gives a clear error, or passes over them.

Each file would leave a marker if a reader imported or called what it names.
"""

import copy
import functools
import http.server
import pickle
import sys
import threading

import pytest
import torch
from hostile_files import CHECKPOINTS, MODULE, nothing_ran, write_checkpoint, write_module
from lightning.pytorch import LightningModule
from small_task import SmallData, quiet_trainer
from torch import nn

import lit_gelu as lg
from lit_gelu import callbacks
from lit_gelu.callbacks import ActivationSwap, ExactResume
from lit_gelu.callbacks.loading import module_of_checkpoint
from lit_gelu.cli.main import main
from lit_gelu.errors import LitGeluError
from lit_gelu.export import export_onnx
from lit_gelu.surgery.activation_record import restore_activations
from lit_gelu.tasks import MNISTClassifier

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")  # Lightning's, about callbacks that are not there

QUIET = ["--trainer.logger=false", "--trainer.enable_progress_bar=false", "--trainer.enable_checkpointing=false"]
QUIET += ["--trainer.accelerator=cpu", "--trainer.enable_model_summary=false"]


class Own(LightningModule):
    """A module of a user's own, which builds its activation from its hyper-parameters as Lightning's docs show."""

    def __init__(self, activation="relu", **others):
        super().__init__()
        self.save_hyperparameters()
        self.hidden = nn.Sequential(nn.Sequential())
        self.hidden[0].linear = nn.Linear(784, 128)
        self.hidden[0].activation = lg.activations.create(activation)
        self.output = nn.Linear(128, 10)
        self.example_input_array = torch.zeros(2, 1, 28, 28)

    def forward(self, images):
        hidden = self.hidden[0]
        return self.output(hidden.activation(hidden.linear(images.flatten(1))))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A good checkpoint of a short run with a swap, its content, and the file that it is exported to."""
    folder = tmp_path_factory.mktemp("good")
    torch.manual_seed(0)
    model = MNISTClassifier("relu", hidden_layers=1)
    trainer = quiet_trainer(max_epochs=1, callbacks=[ActivationSwap({"activation:relu": "gelu"}, at_epoch=0)])
    trainer.fit(model, datamodule=SmallData())
    trainer.save_checkpoint(folder / "good.ckpt")
    export_onnx(model, folder / "good.onnx")
    return folder, torch.load(folder / "good.ckpt", weights_only=True)


def command(*arguments):
    """Return a reader that runs a command, which must end with 0, or with 2 and one message."""

    def read(path, folder, capsys):
        words = {"CKPT": str(path), "ONNX": str(folder / "good.onnx")}
        code = main([*(words.get(word.partition("=")[2], words.get(word, word)) for word in map(str, arguments))])
        error = capsys.readouterr().err
        assert "Traceback" not in error
        assert code in {0, 2}, error
        return error if code else None

    return read


def trainer_command(name):
    def read(path, folder, capsys):
        return command(name, *QUIET, f"--ckpt_path={path}", "--data.batch_size=64")(path, folder, capsys)

    return read


def function(call):
    """Return a reader that calls a function, which must succeed or raise an error of this package."""

    def read(path, folder, capsys):
        try:
            call(path)
        except LitGeluError as error:
            return str(error)
        return None

    return read


def of_lightning(call):
    """Return a reader that is Lightning's: a file with more than plain data it refuses itself."""

    def read(path, folder, capsys):
        try:
            return function(call)(path, folder, capsys)
        except pickle.UnpicklingError:
            return "refused by torch.load, in Lightning's Trainer"

    return read


def resumed(**trainer):
    """Return a reader that resumes a run with the callbacks that read checkpoints."""

    def call(path):
        swap = ActivationSwap({"activation:relu": "gelu"}, at_epoch=0)
        model = MNISTClassifier("relu", hidden_layers=1)
        quiet_trainer(max_epochs=2, callbacks=[swap, ExactResume()], **trainer).fit(
            model, datamodule=SmallData(), ckpt_path=path
        )

    return of_lightning(call)


def measured(path):
    quiet_trainer().test(
        MNISTClassifier("relu", hidden_layers=1), datamodule=SmallData(), ckpt_path=path, verbose=False
    )


def best_of_a_run(path):
    module_of_checkpoint(quiet_trainer(), MNISTClassifier("relu", hidden_layers=1), str(path))


READERS = {
    "MNISTClassifier.load_from_checkpoint": function(MNISTClassifier.load_from_checkpoint),
    "load_from_checkpoint of a task": function(lambda path: callbacks.load_from_checkpoint(MNISTClassifier, path)),
    "load_from_checkpoint of an own module": function(
        lambda path: callbacks.load_from_checkpoint(Own, path, strict=False)
    ),
    "export": command("export", "CKPT", "--no-check"),
    "parity": command("parity", "ONNX", "--ckpt", "CKPT"),
    "curvature": command(
        "curvature", "CKPT", "--data", "DigitsData", "--quantities", "critical_sharpness", "--samples", "32"
    ),
    "bench": command("bench", "ONNX", "--ckpt", "CKPT", "--seconds", "0.1", "--no-compile", "--batch-sizes", "1"),
    "test": trainer_command("test"),
    "validate": trainer_command("validate"),
    "predict": trainer_command("predict"),
    "fit": trainer_command("fit"),
    "Trainer.fit with ActivationSwap and ExactResume": resumed(),
    "Trainer.test": of_lightning(measured),
    "OnnxExport's best checkpoint": function(best_of_a_run),
}
CORE = ["MNISTClassifier.load_from_checkpoint", "load_from_checkpoint of an own module", "export"]
OFTEN = ["activation calls torch.save", "record", "pickle"]
PARSED = ["class path", "instantiator", "own class, registry is YAML", "own class, activation is YAML"]
ALL = [(reader, name) for reader in READERS for name in CHECKPOINTS]
SHORT = [
    (reader, name)
    for reader, name in ALL
    if reader in CORE or name in OFTEN or (reader, name) in [("test", name) for name in PARSED]
]
CASES = [pytest.param(*case, marks=[] if case in SHORT else pytest.mark.full) for case in ALL]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("reader", "name"), CASES)
def test_nothing_that_a_checkpoint_names_runs(reader, name, made, tmp_path, monkeypatch, capsys):
    folder, good = made
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    marker = write_module(tmp_path)
    path = write_checkpoint(good, name, tmp_path / "bad.ckpt", marker)
    try:
        error = READERS[reader](path, folder, capsys)
        assert nothing_ran(marker)
    finally:
        sys.modules.pop(MODULE, None)
    assert error is None or (len(error) > 20 and "weights_only" not in error)  # torch advises to turn that off


@pytest.mark.parametrize("name", [name for name in CHECKPOINTS if "activation " in name])
def test_a_hostile_activation_is_refused_and_not_passed_over(name, made, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = write_checkpoint(made[1], name, tmp_path / "bad.ckpt", write_module(tmp_path))
    with pytest.raises(LitGeluError):
        MNISTClassifier.load_from_checkpoint(path)


def test_a_good_checkpoint_is_read_by_every_reader(made, tmp_path, monkeypatch, capsys):
    """So that the refusals above are for what was put in."""
    folder, good = made
    for number, reader in enumerate(READERS):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        torch.save(copy.deepcopy(good), tmp_path / "good.ckpt")
        assert READERS[reader](tmp_path / "good.ckpt", folder, capsys) is None, reader


def test_a_swap_record_of_any_module_is_looked_up(made, tmp_path, monkeypatch):
    """Also where calls of functions were swapped, whose names the record gives with a colon."""
    monkeypatch.syspath_prepend(tmp_path)
    marker = write_module(tmp_path)
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    for record in ({"1": f"{MODULE}.Thing"}, {f"class:{MODULE}.Thing": "gelu"}, {f"activation:{MODULE}.Thing": "gelu"}):
        with pytest.raises(LitGeluError):
            restore_activations(model, record, input_sample=torch.zeros(1, 2))
    assert nothing_ran(marker)


@pytest.fixture
def address(tmp_path):
    """A server of the test's folder, and its address."""
    handler = functools.partial(QuietHandler, directory=str(tmp_path))
    with QuietServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class QuietServer(http.server.ThreadingHTTPServer):
    """Its own trace of a client that has read enough and hangs up is none of the command's."""

    def handle_error(self, *arguments):
        pass


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.mark.parametrize("name", ["pickle", "record calls"])
def test_a_checkpoint_from_an_address_runs_nothing(name, made, address, tmp_path, monkeypatch, capsys):
    """Lightning unpickles those unless it is told not to."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    marker = write_module(tmp_path)
    write_checkpoint(made[1], name, tmp_path / f"{name[:6]}.ckpt", marker)
    url = f"{address}/{name[:6]}.ckpt"
    arguments = ["--model.hidden_layers=1", "--data.batch_size=64", f"--ckpt_path={url}"]
    assert main(["test", *QUIET, *arguments]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert ("not plain data" if name == "pickle" else "no registered activation") in error
    for load in (
        MNISTClassifier.load_from_checkpoint,
        functools.partial(callbacks.load_from_checkpoint, MNISTClassifier),
    ):
        with pytest.raises(LitGeluError):
            load(url)
    assert nothing_ran(marker)
