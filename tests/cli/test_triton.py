"""``lit-gelu triton``."""

import pytest
import torch
from export_cases import gelu_net
from triton_proto import parsed

from lit_gelu.cli.main import main
from lit_gelu.export import export_onnx


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("triton") / "net.onnx"
    export_onnx(gelu_net(), path, torch.zeros(2, 6), labels=["a", "b", "c"])
    return path


def test_a_repository(path, tmp_path, capsys):
    options = "--device gpu --name digits --version 3 --max-batch-size 64"
    assert main(["triton", str(path), str(tmp_path), *options.split()]) == 0
    assert str(tmp_path / "digits" / "3" / "model.onnx") in capsys.readouterr().out
    config = parsed((tmp_path / "digits" / "config.pbtxt").read_text())
    assert (config.name, config.max_batch_size) == ("digits", 64)


@pytest.mark.parametrize(
    "arguments",
    [
        ["missing.onnx", "r", "--device", "cpu"],
        ["FILE", "r"],
        ["FILE", "r", "--device", "cuda"],
        ["FILE", "FILE", "--device", "cpu"],
    ],
)
def test_mistakes_end_with_2_and_without_a_traceback(path, arguments, capsys):
    assert main(["triton", *[str(path) if word == "FILE" else word for word in arguments]]) == 2
    assert "Traceback" not in capsys.readouterr().err
