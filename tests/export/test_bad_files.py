"""Files that are no models, and writing that fails: a clear error, and what was there stays as it was."""

import os
import re
import resource
import signal
from pathlib import Path

import onnx
import onnx_ir
import pytest
import torch
from child_processes import run_forked
from export_cases import gelu_net
from onnx import TensorProto, helper
from torch import nn

from lit_gelu.errors import LitGeluError
from lit_gelu.export import (
    ModelFileError,
    OnnxPredictor,
    ProviderError,
    check_parity,
    export_onnx,
    metadata,
    write_proof,
)
from lit_gelu.files import UnwritablePathError

SAMPLE = torch.zeros(1, 6)
NET = gelu_net()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a file that is as it should be."""
    path = tmp_path_factory.mktemp("whole") / "net.onnx"
    export_onnx(NET, path, SAMPLE)
    return path.read_bytes()


READERS = {
    "predict": lambda path: OnnxPredictor(path),
    "parity": lambda path: check_parity(NET, path, input_sample=SAMPLE),
}


@pytest.fixture(params=READERS)
def read(request):
    """Each way in which a file is read."""
    return READERS[request.param]


@pytest.mark.parametrize("path", ["long" * 75, "nul\0nul", "half\ud800"], ids=["long", "NUL", "surrogate"])
def test_a_path_that_no_file_can_have(read, path):
    with pytest.raises(ModelFileError, match="There is no file"):
        read(path)
    with pytest.raises(UnwritablePathError, match="Cannot write"):
        export_onnx(NET, path, SAMPLE)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9])
def test_a_truncated_file(tmp_path, whole, read, share):
    path = tmp_path / "net.onnx"
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ModelFileError, match=r"net\.onnx.*(empty|truncated|no whole|is no|cannot)"):
        read(path)


@pytest.mark.parametrize("content", [b"GIF89a" + bytes(500), b"PK\x03\x04" + bytes(500), b"weights: none\n" * 50])
def test_a_foreign_file(tmp_path, read, content):
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"net\.onnx"):
        read(path)


def test_an_onnx_file_of_others_has_no_record_to_compare_with(tmp_path):
    path = tmp_path / "net.onnx"
    torch.onnx.export(NET.eval(), (SAMPLE,), path, dynamo=True, external_data=False, verbose=False)
    assert OnnxPredictor(path)(torch.zeros(1, 6)).shape == (1, 3)
    with pytest.raises(ModelFileError, match="does not carry lit-gelu's metadata"):
        check_parity(NET, path, input_sample=SAMPLE)


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "sub/../../secret.bin", "link.bin"])
def test_external_data_outside_the_folder(tmp_path, whole, read, location):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(10_000))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    model = onnx.load_from_string(whole)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelFileError, match=r"outside its own folder|is not there"):
        read(folder / "net.onnx")


@pytest.mark.parametrize(("domain", "version"), [("", 99), ("example.unheard.of", 1)])
def test_an_unknown_opset(tmp_path, domain, version):
    path = tmp_path / "net.onnx"
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in "xy"]
    node = helper.make_node("Gelu", ["x"], ["y"], domain=domain)
    opsets = [helper.make_opsetid("", 20 if domain else version), helper.make_opsetid("example.unheard.of", 1)]
    model = helper.make_model(helper.make_graph([node], "g", value[:1], value[1:]), opset_imports=opsets, ir_version=9)
    path.write_bytes(model.SerializeToString())
    with pytest.raises((ModelFileError, ProviderError), match=r"net\.onnx") as caught:
        OnnxPredictor(path)
    assert str(version) in str(caught.value) or domain in str(caught.value)


def test_a_bfloat16_file_on_the_cpu(tmp_path):
    path = tmp_path / "net.onnx"
    export_onnx(NET, path, SAMPLE, dtype="bf16")
    with pytest.raises(
        ModelFileError, match=r"no bfloat16 kernel.*net\.onnx.*on a GPU only.*'fp16' or 'fp32'"
    ) as caught:
        OnnxPredictor(path, providers=["CPUExecutionProvider"])
    assert not re.search(r"damaged|lower|optimi[sz]ation", str(caught.value))


def test_a_path_that_cannot_be_written(tmp_path):
    with pytest.raises(LitGeluError, match="it is a folder"):
        export_onnx(NET, tmp_path, SAMPLE)
    (tmp_path / "file").write_text("")
    with pytest.raises(LitGeluError, match="Cannot write"):
        export_onnx(NET, tmp_path / "file" / "net.onnx", SAMPLE)


class Wide(nn.Module):
    """2 MB of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(512, 1024)

    def forward(self, x):
        return nn.functional.gelu(self.layer(x))


WIDE = Wide()


def _export_without_room(path, message):
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))  # Python ignores SIGXFSZ: EFBIG, as ENOSPC
    try:
        export_onnx(WIDE, path, torch.zeros(1, 512))
    except UnwritablePathError as error:
        message.write_text(str(error))


@pytest.mark.parametrize("threshold", [metadata.EXTERNAL_DATA_ABOVE, 1000])
def test_a_disk_that_fills(tmp_path, monkeypatch, threshold):
    """With the weights in the file, and in one of their own."""
    monkeypatch.setattr(metadata, "EXTERNAL_DATA_ABOVE", threshold)
    folder, message = tmp_path / "out", tmp_path / "message.txt"
    path = folder / "net.onnx"
    export_onnx(NET, path, SAMPLE)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert run_forked(_export_without_room, path, message) == 0
    assert "File too large. Make room on that disk" in message.read_text()
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert check_parity(NET, path, input_sample=SAMPLE).passed


def _export_and_die(path, moment):
    torch.set_num_threads(1)
    save, replace = onnx_ir.save, Path.replace

    def half(model, target, **options):
        save(model, target, **options)
        os.truncate(target, Path(target).stat().st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    def die(self, target):
        if moment == "after the rename" or target != path:
            replace(self, target)
        if target == path:
            os.kill(os.getpid(), signal.SIGKILL)

    if moment == "half written":
        onnx_ir.save = half
    else:
        Path.replace = die
    export_onnx(WIDE, path, torch.zeros(1, 512))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("threshold", [metadata.EXTERNAL_DATA_ABOVE, 1000])
@pytest.mark.parametrize("moment", ["half written", "before the rename", "after the rename"])
def test_a_process_that_is_killed(tmp_path, monkeypatch, moment, threshold):
    """The path always holds a whole model: the old one, or after the rename the new one."""
    monkeypatch.setattr(metadata, "EXTERNAL_DATA_ABOVE", threshold)
    path = tmp_path / "net.onnx"
    export_onnx(NET, path, SAMPLE)
    before = path.read_bytes()
    assert run_forked(_export_and_die, path, moment) == -signal.SIGKILL
    if moment == "after the rename":
        assert OnnxPredictor(path)(torch.zeros(2, 512)).shape == (2, 1024)
    else:
        assert path.read_bytes() == before
        assert check_parity(NET, path, input_sample=SAMPLE).passed


def test_a_proof_that_cannot_be_written_leaves_the_file(tmp_path, whole):
    path = tmp_path / "net.onnx"
    path.write_bytes(whole)
    report = check_parity(NET, path, input_sample=SAMPLE)
    (tmp_path / "net.parity.json").mkdir()
    with pytest.raises(UnwritablePathError, match="it is a folder"):
        write_proof(report, path)
    assert path.read_bytes() == whole
