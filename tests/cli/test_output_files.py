"""No option writes over what the command reads, or over what another option writes."""

import pytest
import torch
from lightning.pytorch import Trainer

from lit_gelu.cli.main import main
from lit_gelu.export import export_onnx
from lit_gelu.tasks import MNISTClassifier


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    torch.manual_seed(0)
    model = MNISTClassifier(activation="gelu", hidden_layers=1)
    trainer = Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
    trainer.strategy.connect(model)
    trainer.save_checkpoint(folder / "net.ckpt")
    export_onnx(model, folder / "net.onnx")
    (folder / "link.txt").symlink_to("net.ckpt")
    return folder


CURVATURE = ["curvature", "net.ckpt", "--data", "DigitsData", "--samples", "16", "--quantities", "activations"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["parity", "net.onnx", "--ckpt", "net.ckpt", "--json", "net.onnx"], "--json 'net.onnx' is the file that this"),
        (["parity", "net.onnx", "--ckpt", "net.ckpt", "--markdown", "net.ckpt"], "--markdown 'net.ckpt' is the file"),
        (["parity", "net.onnx", "--ckpt", "net.ckpt", "--html", "./link.txt"], "--html 'link.txt' is the file"),
        (["bench", "net.onnx", "--json", "net.onnx"], "--json 'net.onnx' is the file that this command reads"),
        (["inspect", "net.onnx", "--json=net.onnx"], "--json 'net.onnx' is the file that this command reads"),
        ([*CURVATURE, "--csv", "net.ckpt"], "--csv 'net.ckpt' is the file that this command reads, and would replace"),
        ([*CURVATURE, "--csv", "new", "--json", "new"], "'new' is the file that --csv writes"),
    ],
)
def test_refused_before_any_work(files, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(files)
    before = {path.name: path.read_bytes() for path in files.iterdir()}
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in files.iterdir()} == before


def test_devices_and_standard_output_are_no_files(files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    assert main(["inspect", "net.onnx", "--json", "-"]) == 0
    assert main(["parity", "net.onnx", "--ckpt", "net.ckpt", "--markdown", "/dev/null", "--html", "/dev/null"]) == 0
    assert "net.onnx" in capsys.readouterr().out
