"""``lit-gelu doctor``: made-up installations with one fault each, and this one."""

import importlib.metadata
import json
import subprocess
from dataclasses import replace

import pytest
import torch
from child_processes import PATIENCE, run_python

from lit_gelu.cli import doctor
from lit_gelu.cli.doctor import facts as doctor_facts
from lit_gelu.cli.doctor.facts import Facts, Gpu
from lit_gelu.cli.doctor.findings import CHECKS, KERNELS, examine
from lit_gelu.cli.main import main

H100 = Gpu("NVIDIA H100", (9, 0))
WITH_GPU = Facts(
    platform="Linux x86_64",
    versions={"onnxruntime-gpu": "1.31.1", "torch": "2.15.0"},
    onnxruntime_distributions=("onnxruntime-gpu",),
    onnxruntime_cuda="13.0",
    torch_cuda="13.2",
    torch_sees_gpu=True,
    gpu_devices=True,
    gpus=(H100,),
    driver_cuda=(13, 1),
    libraries={"libcublas.so.13": True, "libcudnn.so.9": True},
    tensorrt="libnvinfer.so.10",
    tensorrt_found=True,
    cuda_error="",
)
WITHOUT_GPU = replace(
    WITH_GPU, torch_sees_gpu=False, gpu_devices=False, gpus=(), driver_cuda=None, cuda_error=None
)  # fmt: skip


def broken(facts):
    return {finding.check: finding for finding in examine(facts) if finding.level == "broken"}


def test_nothing_is_broken_with_a_gpu_and_without():
    assert {finding.level for finding in examine(WITH_GPU)} == {"ok"}
    assert not broken(WITHOUT_GPU)
    on_a_mac = replace(
        WITHOUT_GPU,
        platform="Darwin arm64",
        versions={"onnxruntime": "1.31.1"},
        onnxruntime_distributions=("onnxruntime",),
        onnxruntime_cuda="",
        torch_cuda="",
        libraries={},
    )
    assert not broken(on_a_mac)


FAULTS = {
    "both wheels": (
        replace(WITH_GPU, onnxruntime_distributions=("onnxruntime", "onnxruntime-gpu")),
        "onnxruntime wheels",
        "installed together",
        "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu",
    ),
    "no wheel": (
        replace(WITH_GPU, onnxruntime_distributions=()), "onnxruntime wheels", "none", "pip install onnxruntime-gpu"
    ),
    "no wheel on a Mac": (
        replace(WITHOUT_GPU, platform="Darwin arm64", onnxruntime_distributions=()),
        "onnxruntime wheels",
        "none",
        "pip install onnxruntime",
    ),
    "an empty package": (
        replace(WITH_GPU, onnxruntime_error="AttributeError: no attribute 'InferenceSession'"),
        "onnxruntime",
        "InferenceSession",
        "pip install --force-reinstall --no-deps onnxruntime-gpu",
    ),
    "torch for CUDA 12": (
        replace(WITH_GPU, torch_cuda="12.8"), "CUDA versions", "torch is built for CUDA 12", "torch for CUDA 13"
    ),
    "onnxruntime without CUDA": (
        replace(WITH_GPU, onnxruntime_distributions=("onnxruntime",), onnxruntime_cuda=""),
        "CUDA versions",
        "onnxruntime is built without CUDA",
        "pip install onnxruntime-gpu",
    ),
    "no cuDNN": (
        replace(WITH_GPU, libraries={"libcudnn.so.9": False, "libcublas.so.13": True}),
        "CUDA libraries",
        "missing: libcudnn.so.9",
        "pip install nvidia-cudnn-cu13",
    ),
    "no cuBLAS": (
        replace(WITH_GPU, libraries={"libcublasLt.so.13": False, "libcublas.so.13": False}),
        "CUDA libraries",
        "libcublas.so.13",
        "pip install nvidia-cublas",
    ),
    "no cuBLAS of CUDA 12": (
        replace(WITH_GPU, onnxruntime_cuda="12.8", torch_cuda="12.8", libraries={"libcublas.so.12": False}),
        "CUDA libraries",
        "libcublas.so.12",
        "pip install nvidia-cublas-cu12",
    ),
    "an old driver": (
        replace(WITH_GPU, driver_cuda=(12, 4)), "driver", "up to 12.4", "install a newer NVIDIA driver"
    ),
    "no driver": (
        replace(WITH_GPU, torch_sees_gpu=False, gpus=(), driver_cuda=None), "GPU", "no working driver", "driver"
    ),
    "torch without CUDA": (
        replace(WITH_GPU, torch_sees_gpu=False, gpus=(), torch_cuda=""), "GPU", "without CUDA", "torch for CUDA 13"
    ),
    "a GPU that torch cannot use": (
        replace(WITH_GPU, torch_sees_gpu=False, gpus=()), "GPU", "cannot use it", "says why"
    ),
    "a GPU without kernels": (
        replace(WITH_GPU, gpus=(H100, Gpu("B200", (10, 0)))), "GPU kernels", "no kernels for B200 (sm_100)", "TensorRT"
    ),
    "TensorRT of another major version": (
        replace(WITH_GPU, tensorrt_found=False, versions={"tensorrt-cu13": "11.4.0.106", **WITH_GPU.versions}),
        "TensorRT",
        "missing: libnvinfer.so.10; tensorrt-cu13 11.4.0.106 has another",
        "pip install 'tensorrt-cu13<11'",
    ),
    "a requirement": (
        replace(WITH_GPU, unmet=("onnx>=1.20 (1.16.0 is installed)",)),
        "requirements",
        "1.16.0",
        "pip install 'onnx>=1.20'",
    ),
    "torch": (replace(WITHOUT_GPU, torch_error="OSError: libcudart"), "torch", "libcudart", "pip install torch"),
    "a run on CUDA": (replace(WITH_GPU, cuda_error="out of memory"), "a model on CUDA", "out of memory", "debug_info"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_alone_with_its_remedy(fault):
    facts, check, text, remedy = FAULTS[fault]
    found = broken(facts)
    assert list(found) == [check]
    assert text in found[check].text
    assert remedy in found[check].remedy


def test_what_matters_only_with_a_gpu_is_a_note_without_one():
    for fault in ("torch for CUDA 12", "no cuDNN"):
        facts = replace(FAULTS[fault][0], **{
            name: getattr(WITHOUT_GPU, name)
            for name in ("torch_sees_gpu", "gpu_devices", "gpus", "driver_cuda", "cuda_error")
        })  # fmt: skip
        assert not broken(facts)
        assert any(finding.level == "note" and finding.remedy for finding in examine(facts))


@pytest.mark.parametrize(
    ("capability", "fits"),
    [((7, 0), False), ((7, 5), True), ((8, 0), True), ((8, 7), True), ((8, 9), True), ((9, 0), True),
     ((10, 0), False), ((10, 3), False), ((12, 0), True), ((12, 1), False)],
)  # fmt: skip
def test_kernels_of_the_wheel_and_gpus(capability, fits):
    """Code for sm_XY runs on X.Z for Z >= Y, with an "a" on X.Y alone (NVIDIA's guide to binary compatibility)."""
    facts = replace(WITH_GPU, gpus=(Gpu("some", capability),))
    assert ("GPU kernels" not in broken(facts)) == fits


def test_a_release_whose_kernels_are_not_known_is_not_judged():
    facts = replace(WITH_GPU, versions={"onnxruntime-gpu": "9.9.0"}, gpus=(Gpu("some", (10, 0)),))
    assert "9.9" not in KERNELS
    assert not broken(facts)


def test_requirements_are_compared_with_what_is_installed(monkeypatch):
    monkeypatch.setattr(
        importlib.metadata,
        "requires",
        lambda name: ["torch>=99", "no-such-distribution>=1", "numpy>=1", "scipy>=99; extra == 'dev'",
                      "onnx>=99; platform_system == 'Amiga'"],
    )  # fmt: skip
    installed = importlib.metadata.version("torch")
    assert list(doctor_facts.unmet_requirements("lit-gelu")) == [
        f"torch>=99 ({installed} is installed)", "no-such-distribution>=1 (not installed)"
    ]  # fmt: skip


def test_this_installation(monkeypatch, capsys):
    """The requirements are met here; two sub-processes are started, or one without a GPU."""
    monkeypatch.setattr(doctor_facts, "_TRIAL_SECONDS", PATIENCE)
    assert main(["doctor", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert len(content["findings"]) == len(CHECKS)
    facts = content["facts"]
    assert facts["versions"]["torch"] == importlib.metadata.version("torch")
    assert facts["torch_cuda"] == (torch.version.cuda or "")
    assert facts["torch_sees_gpu"] == torch.cuda.is_available()
    assert len(facts["onnxruntime_distributions"]) == 1
    assert (facts["onnxruntime_error"], facts["unmet"]) == ("", [])


def test_the_exit_code_and_what_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "gather", lambda: FAULTS["both wheels"][0])
    assert main(["doctor"]) == 1
    output = capsys.readouterr().out
    assert "broken onnxruntime wheels: onnxruntime and onnxruntime-gpu are installed together" in output
    assert "to mend it: pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu" in output
    assert output.endswith("1 broken\n")
    monkeypatch.setattr(doctor, "gather", lambda: WITH_GPU)
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("nothing is broken\n")


def test_a_trial_that_fails_says_why(monkeypatch):
    def done(code, stderr):
        return lambda *arguments, **options: subprocess.CompletedProcess([], code, "", stderr)

    monkeypatch.setattr(
        subprocess, "run", done(1, "[E:onnxruntime] Failed to load x.so with error: libcudnn.so.9: no\n")
    )
    assert doctor_facts._trial("CUDAExecutionProvider") == "libcudnn.so.9: no"
    monkeypatch.setattr(subprocess, "run", done(1, "Traceback ...\nImportError: no module\n"))
    assert doctor_facts._trial("CPUExecutionProvider") == "ImportError: no module"
    monkeypatch.setattr(subprocess, "run", done(-11, ""))
    assert doctor_facts._trial("CUDAExecutionProvider") == "exit code -11"


@pytest.mark.full
def test_it_works_where_onnxruntime_cannot_be_imported():
    """The doctor itself must not import what it examines."""
    code = (
        "import sys; sys.modules['onnxruntime'] = None; sys.modules['lightning'] = None; sys.modules['onnx'] = None;"
        "from lit_gelu.cli.doctor import facts;"
        "facts._trial = lambda provider: 'not tried';"
        "from lit_gelu.cli.main import main; sys.exit(main(['doctor']))"
    )
    done = run_python(code, check=False)
    assert done.returncode == 1, done.stderr
    assert "broken onnxruntime: does not work: not tried" in done.stdout
