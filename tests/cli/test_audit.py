"""``lit-gelu audit``."""

import json

import pytest
from cli_helpers import save_untrained

from lit_gelu.cli.main import main
from lit_gelu.export import export_onnx


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit")
    model = save_untrained(folder / "last.ckpt", activation="gelu_tanh", hidden_layers=1)
    export_onnx(model, folder / "same.onnx")
    export_onnx(model, folder / "exact.onnx", approximate="none")
    return folder


def test_the_exit_code_says_same_differs_or_cannot_tell(folder, capsys):
    checkpoint = str(folder / "last.ckpt")
    assert main(["audit", checkpoint, str(folder / "same.onnx")]) == 0
    assert main(["audit", checkpoint, str(folder / "exact.onnx")]) == 1
    assert "gelu for gelu(approximate='tanh')" in capsys.readouterr().out
    assert main(["audit", checkpoint, str(folder / "missing.onnx")]) == 2
    assert main(["audit", "gelu", "torch.nn.functional:softmax"]) == 2


def test_the_report_is_plain_data_and_a_page(folder, tmp_path, capsys):
    arguments = ["audit", str(folder / "last.ckpt"), str(folder / "exact.onnx"), "--data", "DigitsData"]
    assert main([*arguments, "--json", "--html", str(tmp_path / "audit.html")]) == 1
    plain = json.loads(capsys.readouterr().out)
    assert plain["differs"]
    (cost,) = plain["costs"]
    assert set(cost["metrics"]) >= {"test_error", "test_loss"}
    assert 0 < cost["outputs"] < 1e-2
    assert "<table" in (tmp_path / "audit.html").read_text()


def test_a_function_is_named_by_its_module(capsys):
    assert main(["audit", "gelu", "torch.nn.functional:gelu"]) == 0
    assert main(["audit", "gelu_tanh", "torch.nn.functional:gelu"]) == 1
    assert main(["audit", "gelu", "torch.nn:GELU"]) == 0
    assert main(["audit", "gelu", "torch.nn.functional:no_such_function"]) == 2
    assert "no_such_function" in capsys.readouterr().err
