"""What is in a file of `export_onnx` and beside it, and what is not."""

import os
import resource
import signal
from pathlib import Path

import export_zoo
import onnx
import onnx_ir
import pytest
import torch
from child_processes import run_forked
from export_cases import gelu_net

from lit_gelu.export import ExportError, OnnxPredictor, check_parity, export_onnx, metadata
from lit_gelu.files import UnwritablePathError

SAMPLE = torch.zeros(1, 6)


def test_nothing_of_this_machine_is_in_the_file(tmp_path):
    path = tmp_path / "net.onnx"
    export_onnx(gelu_net(), path, SAMPLE)
    content = path.read_bytes()
    import lit_gelu

    places = {
        str(path.parent),
        str(Path.cwd()),
        str(Path.home()),
        str(Path(lit_gelu.__file__).parent),
        str(Path(torch.__file__).parent),
    }
    for place in places - {"/"}:
        assert place.encode() not in content
    for trace in (b"stack_trace", b'File "', b".py", b"pkg.torch", b"site-packages"):
        assert trace not in content
    assert [file.name for file in path.parent.iterdir()] == ["net.onnx"]  # no .onnx.data beside it


def test_large_weights_go_to_a_file_of_their_own(tmp_path, monkeypatch):
    """Above protobuf's 2 GB, here made small."""
    monkeypatch.setattr(metadata, "EXTERNAL_DATA_ABOVE", 1000)
    path = tmp_path / "net.onnx"
    export_onnx(gelu_net(), path, SAMPLE)
    (first,) = set(tmp_path.iterdir()) - {path}
    net = gelu_net(seed=1)
    export_onnx(net, path, SAMPLE)
    (second,) = set(tmp_path.iterdir()) - {path}
    assert first.name != second.name
    assert check_parity(net, path).passed
    monkeypatch.setattr(onnx.checker, "check_model", _refuse)
    with pytest.raises(ExportError):
        export_onnx(gelu_net(seed=2), path, SAMPLE)
    assert set(tmp_path.iterdir()) == {path, second}
    assert check_parity(net, path).passed


@pytest.mark.full
def test_large_weights_go_beside_the_file_that_a_link_names(tmp_path, monkeypatch):
    """Beside the link, they would leave that file without its weights."""
    real, link = tmp_path / "real" / "net.onnx", tmp_path / "links" / "net.onnx"
    export_onnx(gelu_net(), real, SAMPLE)
    link.parent.mkdir()
    link.symlink_to(real)
    monkeypatch.setattr(metadata, "EXTERNAL_DATA_ABOVE", 1000)
    for seed in (1, 2):
        export_onnx(gelu_net(seed=seed), link, SAMPLE)
        assert check_parity(gelu_net(seed=seed), real).passed
        assert check_parity(gelu_net(seed=seed), link).passed
        assert len(list(real.parent.iterdir())) == 2
    assert list(link.parent.iterdir()) == [link]
    assert link.is_symlink()


def _refuse(*_, **__):
    raise onnx.checker.ValidationError("refused")


def _save_without_room(model, path, message):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))  # Python ignores SIGXFSZ: EFBIG, as ENOSPC
    try:
        metadata.save_model(model, path)
    except UnwritablePathError as error:
        message.write_text(str(error))


def _save_and_die(model, path, moment):
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
    metadata.save_model(model, path)


@pytest.fixture(params=[metadata.EXTERNAL_DATA_ABOVE, 100], ids=["one file", "weights beside it"])
def saved(request, tmp_path, monkeypatch):
    """A file, and another model for its place; with the weights in the file, and in one of their own."""
    monkeypatch.setattr(metadata, "EXTERNAL_DATA_ABOVE", request.param)
    folder = tmp_path / "out"
    folder.mkdir()
    model, other = (onnx_ir.load(export_zoo.exported(name)[1]) for name in ("gelu", "pools"))
    metadata.save_model(model, folder / "net.onnx")
    return folder / "net.onnx", other


@pytest.mark.forks
def test_a_disk_that_fills_leaves_what_was_there(saved, tmp_path):
    path, other = saved
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    assert run_forked(_save_without_room, other, path, tmp_path / "message.txt") == 0
    assert (tmp_path / "message.txt").exists()
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


@pytest.mark.forks
@pytest.mark.parametrize("moment", ["half written", "before the rename", "after the rename"])
def test_a_process_that_is_killed_leaves_a_whole_file(saved, moment):
    """The old one, or after the rename the new one."""
    path, other = saved
    before = path.read_bytes()
    assert run_forked(_save_and_die, other, path, moment) == -signal.SIGKILL
    inputs = OnnxPredictor(path).input_names
    if moment != "after the rename":
        assert path.read_bytes() == before
        assert inputs == ["input"]


class NearlyNothing(torch.nn.Module):
    """Divides by a length with an epsilon, and has constants that are nearly 0 and 1."""

    def forward(self, x):
        y = torch.nn.functional.gelu(x)
        return y / torch.sqrt(y.pow(2).mean(-1, keepdim=True) + 1e-8), y * 1.000009, y / 0.999992, y - 1e-8


def test_constants_that_are_nearly_zero_or_one_are_kept(tmp_path):
    path = tmp_path / "net.onnx"
    x = torch.linspace(-1e-7, 1e-7, 24).reshape(4, 6)
    x[1] = 0  # without its epsilon NaN
    export_onnx(NearlyNothing(), path, x)
    for value, expected in zip(OnnxPredictor(path)(x), NearlyNothing()(x), strict=True):
        torch.testing.assert_close(value, expected, rtol=3e-7, atol=0)
