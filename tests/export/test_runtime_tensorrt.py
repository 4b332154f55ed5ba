"""TensorRT through onnxruntime, as far as it goes without a GPU: its libraries, where engines are kept, parity."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from child_processes import run_python
from onnx import TensorProto, helper, numpy_helper

from lit_gelu.cuda_versions import tensorrt_library, tensorrt_wheel
from lit_gelu.export import ProviderError
from lit_gelu.export.parity import execution
from lit_gelu.export.runtime import CPU, TENSORRT, open_session, session, tensorrt
from lit_gelu.export.runtime.model_file import read_model_file

VERSION = 101601
CAPI = Path(onnxruntime.__file__).parent / "capi"
LOAD = "from lit_gelu.export.runtime.tensorrt import load_tensorrt; print(load_tensorrt())"


def saved(folder, weight=1.0, name="net.onnx"):
    folder.mkdir(parents=True, exist_ok=True)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch"]) for name in "xy"]
    weights = [numpy_helper.from_array(torch.tensor(weight).numpy(), "w")]
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), folder / name)
    return folder / name


def kept(path, version=VERSION, **options):
    """The options of a session, with what is added to them."""
    tensorrt.keep_engines(read_model_file(path), options, version)
    return options


def major(library):
    return int(re.search(r"\d+", library)[0])


def folder_of(path, **others):
    return Path(kept(path, **others)["trt_engine_cache_path"])


needs_provider = pytest.mark.skipif(
    TENSORRT not in onnxruntime.get_available_providers(), reason="this onnxruntime has no TensorRT provider"
)


@needs_provider
def test_the_version_is_the_one_that_the_provider_is_linked_with():
    if shutil.which("readelf") is None:
        pytest.skip("readelf, which says what a library needs, is not installed")
    (library,) = CAPI.glob("libonnxruntime_providers_tensorrt.so")
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"\[(libnvinfer\.so\.\d+)\]", needed) == [tensorrt_library(CAPI)]


def test_without_a_provider_there_is_no_version(tmp_path):
    assert tensorrt_library(tmp_path) == ""
    (tmp_path / "onnxruntime_providers_tensorrt.dll").write_bytes(b"MZ\0nvinfer_10.dll\0")
    assert tensorrt_library(tmp_path) == "nvinfer_10.dll"
    assert tensorrt_wheel("nvinfer_10.dll", "13.0") == "pip install 'tensorrt-cu13<11'"  # its newest wheels are 11


@needs_provider
def test_what_cannot_be_loaded_is_said_with_its_remedy(tmp_path, monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(session, "_load_libraries", lambda provider: None)
    monkeypatch.setattr(tensorrt.ctypes, "CDLL", missing)
    name = tensorrt_library(CAPI)
    with pytest.raises(
        ProviderError, match=rf"needs TensorRT's {name}.*pip install 'tensorrt-cu\d+<{major(name) + 1}'"
    ):
        open_session(saved(tmp_path), [TENSORRT])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["net.onnx"]


@needs_provider
@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is built for Linux")
@pytest.mark.parametrize("later", [0, 1])
def test_the_libraries_come_out_of_their_wheel(tmp_path, later):
    """A stand-in for it, of the major version that onnxruntime wants and of the next."""
    if shutil.which("gcc") is None:
        pytest.skip("the stand-in is built with gcc, which is not installed")
    wanted = tensorrt_library(CAPI)
    name = f"libnvinfer.so.{major(wanted) + later}"
    wheel = tmp_path / "tensorrt_libs"
    wheel.mkdir()
    (wheel / "version.c").write_text(f"int getInferLibVersion() {{ return {VERSION}; }}")
    command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "version.c", "-o", name]
    subprocess.run(command, cwd=wheel, check=True, capture_output=True)
    (wheel / "__init__.py").write_text(f"import ctypes; ctypes.CDLL({str(wheel / name)!r})")
    done = run_python(LOAD, check=False, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    if later:
        assert "ProviderError: onnxruntime" in done.stderr
    else:
        assert done.stdout.split() == [str(VERSION)], done.stderr


def test_engines_are_kept_beside_the_file(tmp_path):
    path = saved(tmp_path)
    options = kept(path)
    engines = Path(options.pop("trt_engine_cache_path"))
    assert engines.is_dir()
    assert engines.parent == tmp_path / "net.onnx.tensorrt"
    assert options == {
        "trt_engine_cache_enable": "1",
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(engines.parent),
    }


def test_an_engine_is_never_taken_for_another_files(tmp_path):
    """Its name does not depend on weights, options or TensorRT's version."""
    path = saved(tmp_path / "a")
    first = folder_of(path)
    (first / "one.engine").write_bytes(b"engine")
    assert folder_of(path) == first == folder_of(path, device_id="1", user_compute_stream="7")
    others = [folder_of(path, version=VERSION + 1), folder_of(path, trt_fp16_enable="1")]
    others += [folder_of(saved(tmp_path / "a", weight=2.0)), folder_of(saved(tmp_path / "b"))]
    assert len({first, *others}) == 5
    assert (first / "one.engine").read_bytes() == b"engine"  # of the content that the file had
    assert first == folder_of(saved(tmp_path / "a"))


def test_weights_beside_the_file_count(tmp_path):
    path = saved(tmp_path)
    found = []
    for weight in (1.0, 2.0):
        model = onnx.load(saved(tmp_path, weight, "whole.onnx"))
        onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
        found.append((path.read_bytes(), folder_of(path)))
        (tmp_path / "weights").unlink()
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]


def test_tf32_counts(tmp_path, monkeypatch):
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    before = folder_of(saved(tmp_path))
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert folder_of(tmp_path / "net.onnx") != before


@pytest.mark.parametrize(
    "given",
    [{"trt_engine_cache_enable": "0"}, {"trt_engine_cache_path": "elsewhere"}, {"trt_dump_ep_context_model": "1"}],
)
def test_what_the_user_says_of_engines_stands(tmp_path, given):
    assert kept(saved(tmp_path), **given) == given
    assert sorted(file.name for file in tmp_path.iterdir()) == ["net.onnx"]


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    path = saved(tmp_path)
    engines = folder_of(path)
    monkeypatch.setattr(tensorrt.os, "access", lambda *_: False)
    with pytest.raises(ProviderError, match=r"it is read-only and holds none.*trt_engine_cache_path.*_enable=0"):
        kept(path)
    (engines / "one.engine").touch()  # can be read
    assert folder_of(path) == engines
    other = saved(tmp_path / "other")
    other.with_name("net.onnx.tensorrt").write_text("mine")
    with pytest.raises(ProviderError, match=r"(?s)cannot be kept in .*net\.onnx\.tensorrt.*trt_engine_cache_path"):
        kept(other)
    assert other.with_name("net.onnx.tensorrt").read_text() == "mine"


@needs_provider
def test_a_session_is_opened_with_them(tmp_path, monkeypatch):
    opened = []

    def noted(model, checked, *others):
        opened.append(checked)
        raise ProviderError("there is no device")

    monkeypatch.setattr(session, "_load_libraries", lambda provider: None)
    monkeypatch.setattr(session, "load_tensorrt", lambda: VERSION)
    monkeypatch.setattr(session, "_open", noted)
    with pytest.raises(ProviderError, match="no device"):
        open_session(saved(tmp_path), [(TENSORRT, {"trt_fp16_enable": 1}), CPU])
    (checked,) = opened
    assert checked == {TENSORRT: kept(tmp_path / "net.onnx", trt_fp16_enable="1"), CPU: {}}


@pytest.mark.parametrize(("override", "said"), [(None, True), ("1", True), ("0", False)])
def test_parity_says_that_tensorrt_may_use_tf32(tmp_path, monkeypatch, override, said):
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    if override:
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", override)
    monkeypatch.setattr(execution.SessionSetup, "open", lambda setup, path: setup.providers)
    for dtype in (torch.float32, torch.float16):
        found, _, notes = execution.open_wanted(saved(tmp_path), [TENSORRT, CPU], {}, dtype)
        assert found == (TENSORRT,)
        assert [note for note in notes if "TF32" in note] == notes
        assert len(notes) == (said and dtype == torch.float32)
