"""``lit-gelu doctor``: this installation, and made-up ones with one fault each."""

import importlib.metadata

import pytest
import torch

from lit_gelu.cli import doctor
from lit_gelu.cli.main import main

WHEELS = doctor._onnxruntime_wheels


@pytest.fixture(autouse=True)
def sound(monkeypatch):
    """An installation without a GPU and without faults, in which no process is started."""
    monkeypatch.setattr(doctor, "_trial", lambda provider: "")
    monkeypatch.setattr(doctor, "_onnxruntime_wheels", lambda: ["onnxruntime-gpu"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor.Path, "glob", lambda self, pattern: iter(()))


@pytest.fixture
def gpu(monkeypatch):
    """The same with a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "NVIDIA H200")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(doctor, "onnxruntime_cuda", lambda: "13.0")


def levels():
    return {finding.check: finding.level for finding in doctor.examine()}


def test_nothing_is_broken_in_a_sound_installation(capsys):
    assert levels() == {"torch": "ok", "onnxruntime wheels": "ok", "onnxruntime": "ok", "GPU": "note"}
    assert main(["doctor"]) == 0
    assert f"torch {importlib.metadata.version('torch')}" in capsys.readouterr().out


def test_nothing_is_broken_with_a_gpu(gpu):
    assert set(levels().values()) == {"ok"}
    assert "a model on CUDA" in levels()


@pytest.mark.parametrize(
    ("name", "value", "check"),
    [
        ("_onnxruntime_wheels", lambda: ["onnxruntime", "onnxruntime-gpu"], "onnxruntime wheels"),
        ("_onnxruntime_wheels", list, "onnxruntime wheels"),
        ("_trial", lambda provider: "no attribute 'InferenceSession'", "onnxruntime"),
        ("_trial", lambda provider: "no libcudnn" if provider.startswith("CUDA") else "", "a model on CUDA"),
        ("onnxruntime_cuda", lambda: "12.8", "CUDA versions"),
        ("onnxruntime_cuda", lambda: "", "CUDA versions"),
    ],
)
def test_one_fault_is_broken_and_has_a_remedy(name, value, check, gpu, monkeypatch, capsys):
    monkeypatch.setattr(doctor, name, value)
    findings = {finding.check: finding for finding in doctor.examine()}
    assert findings[check].level == "broken"
    assert findings[check].remedy
    assert main(["doctor"]) == 1
    assert findings[check].remedy in capsys.readouterr().out


def test_a_package_of_which_nothing_is_left(monkeypatch):
    monkeypatch.delattr(torch.version, "cuda")
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: {"onnxruntime": [None, "onnxruntime"]})
    assert WHEELS() == ["onnxruntime"]
    assert levels()["torch"] == "broken"


def test_a_gpu_that_torch_cannot_use(monkeypatch):
    monkeypatch.setattr(doctor.Path, "glob", lambda self, pattern: iter([self / "nvidia0"]))
    assert levels()["GPU"] == "broken"


@pytest.mark.full
def test_onnxruntime_runs_the_trial_here(monkeypatch):
    monkeypatch.undo()
    assert doctor._trial("CPUExecutionProvider") == ""
    assert doctor._trial("NoExecutionProvider")
