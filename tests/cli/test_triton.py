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
    options = "--device gpu --name digits --version 3 --max-batch-size 64 --preferred-batch-sizes 8 32"
    options += " --max-queue-delay-us 500 --instances 2 --warmup 1 64 --no-tuning"
    assert main(["triton", str(path), str(tmp_path), *options.split()]) == 0
    assert str(tmp_path / "digits" / "3" / "model.onnx") in capsys.readouterr().out
    assert (tmp_path / "digits" / "3" / "model.onnx").read_bytes() == path.read_bytes()
    assert (tmp_path / "digits" / "labels.txt").read_text() == "a\nb\nc\n"
    config = parsed((tmp_path / "digits" / "config.pbtxt").read_text())
    assert (config.name, config.max_batch_size, config.instance_group[0].count) == ("digits", 64, 2)
    assert list(config.dynamic_batching.preferred_batch_size) == [8, 32]
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    assert [request.batch_size for request in config.model_warmup] == [1, 64]


def test_what_is_there_is_replaced_only_if_asked_for(path, tmp_path, capsys):
    arguments = ["triton", str(path), str(tmp_path), "--device", "cpu"]
    assert main(arguments) == 0
    config = tmp_path / "net" / "config.pbtxt"
    config.write_text("by hand")
    assert main(arguments) == 2
    assert "Version 1 is there already" in capsys.readouterr().err
    assert main([*arguments, "--version", "2", "--keep-config"]) == 0
    assert config.read_text() == "by hand"
    assert main([*arguments, "--overwrite"]) == 0
    assert parsed(config.read_text()).name == "net"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.onnx", "r", "--device", "cpu"], "There is no file 'missing.onnx'"),
        (["FILE", "r"], "device"),
        (["FILE", "r", "--device", "cuda"], "invalid choice: 'cuda'. Give cpu or gpu."),
        (["FILE", "FILE", "--device", "cpu"], "Give a repository that you may write to"),
    ],
)
def test_mistakes(path, arguments, message, capsys):
    assert main(["triton", *[str(path) if word == "FILE" else word for word in arguments]]) == 2
    assert message in capsys.readouterr().err
