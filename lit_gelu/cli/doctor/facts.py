"""What `lit-gelu doctor` gathers of an installation. Nothing here may fail because the installation is broken."""

import ctypes
import importlib
import importlib.metadata
import importlib.util
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lit_gelu.cuda_versions import tensorrt_library

_SHOWN = ("lit-gelu", "torch", "lightning", "onnx", "onnxscript", "numpy", "tensorrt", "tensorrt-cu12", "tensorrt-cu13")
_LIBRARIES = ("libcublasLt.so.{}", "libcublas.so.{}", "libcudart.so.{}", "libcurand.so.10")
_CUFFT = {"12": "libcufft.so.11", "13": "libcufft.so.12"}
_TRIAL_SECONDS = 120
# In a process of its own: a library that crashes while it is loaded does not take the doctor along, and what
# onnxruntime prints on its own is caught.
_TRIAL = """
import json, sys
import numpy, onnx, onnxruntime
from onnx import TensorProto, helper
provider = sys.argv[1]
if provider != "CPUExecutionProvider":
    import torch
    onnxruntime.preload_dlls()
value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])
graph = helper.make_graph([helper.make_node("Gelu", ["x"], ["y"])], "trial", [value("x")], [value("y")])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
options = onnxruntime.SessionOptions()
if provider != "CPUExecutionProvider":
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[provider], enable_fallback=0)
y = session.run(None, {"x": numpy.ones(4, numpy.float32)})[0]
assert abs(float(y[0]) - 0.8413447) < 1e-4, f"GELU(1) = {y[0]}"
assert session.get_providers()[0] == provider, session.get_providers()
"""


@dataclass(frozen=True)
class Gpu:
    """One GPU and its compute capability."""

    name: str
    capability: tuple[int, int]


@dataclass(frozen=True)
class Facts:
    """What was gathered of an installation; nothing here is judged."""

    platform: str = ""  # operating system and machine
    versions: Mapping[str, str] = field(default_factory=dict)  # version by distribution, of those that matter
    unmet: tuple[str, ...] = ()  # requirements of lit-gelu that are not met, as text
    onnxruntime_distributions: tuple[str, ...] = ()  # distributions that bring the import name ``onnxruntime``
    onnxruntime_error: str = ""  # why it cannot be imported or cannot run a model on the CPU; empty if it can
    onnxruntime_cuda: str = ""  # the CUDA version that it was built for; empty for a build without CUDA
    onnxruntime_providers: tuple[str, ...] = ()  # execution providers of the build
    torch_error: str = ""  # why torch cannot be imported; empty if it can
    torch_cuda: str = ""  # the CUDA version that torch was built for; empty for a build without CUDA
    torch_sees_gpu: bool = False  # whether torch can use a GPU
    gpu_devices: bool = False  # whether the system shows NVIDIA devices, drivers working or not
    gpus: tuple[Gpu, ...] = ()  # the GPUs that torch can use
    # the newest CUDA version that the driver runs, ``None`` if there is no driver
    driver_cuda: tuple[int, int] | None = None
    # whether a library that onnxruntime's CUDA provider needs was found, by its name
    libraries: Mapping[str, bool] = field(default_factory=dict)
    tensorrt: str = ""  # the library of TensorRT that onnxruntime loads; empty for a build without it
    tensorrt_found: bool = False  # whether that is there
    # why onnxruntime cannot run a model on CUDA; empty if it can; ``None`` if that was not tried
    cuda_error: str | None = None


def gather() -> Facts:
    """Gather what `lit_gelu.cli.doctor.findings` judges."""
    build = onnxruntime_build()
    cuda = str(build.get("cuda_version", "") or "")
    tensorrt = next(filter(None, map(tensorrt_library, _onnxruntime_libraries())), "")
    wheels = tuple(sorted(set(importlib.metadata.packages_distributions().get("onnxruntime", ()))))
    torch_facts = _torch_facts()
    tried = cuda and torch_facts["torch_sees_gpu"]
    return Facts(
        platform=f"{platform.system()} {platform.machine()}",
        versions=_versions((*_SHOWN, *wheels)),
        unmet=tuple(unmet_requirements("lit-gelu")),
        onnxruntime_distributions=wheels,
        onnxruntime_error=_trial("CPUExecutionProvider"),
        onnxruntime_cuda=cuda,
        driver_cuda=_driver_cuda(),
        gpu_devices=_gpu_devices(),
        libraries=_libraries(cuda) if platform.system() == "Linux" else {},
        tensorrt=tensorrt,
        tensorrt_found=bool(tensorrt) and _found(tensorrt),
        cuda_error=_trial("CUDAExecutionProvider") if tried else None,
        **torch_facts,
    )


def unmet_requirements(distribution: str) -> Iterator[str]:
    """Yield the requirements of a distribution that are not met, each with what is installed instead."""
    from packaging.requirements import Requirement  # comes with lightning, which may be what is missing

    for text in importlib.metadata.requires(distribution) or ():
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            yield f"{requirement.name}{requirement.specifier} (not installed)"
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            yield f"{requirement.name}{requirement.specifier} ({installed} is installed)"


def onnxruntime_build() -> dict[str, Any]:
    """Return what the wheel of onnxruntime says of itself, such as ``cuda_version``; empty if there is none."""
    for folder in _onnxruntime_libraries():
        file = folder / "build_and_package_info.py"
        if file.is_file():
            lines = (line.partition("=") for line in file.read_text(encoding="utf-8").splitlines() if "=" in line)
            return {name.strip(): value.strip().strip("'\"") for name, _, value in lines}
    return {}


def _onnxruntime_libraries() -> list[Path]:
    """Return where onnxruntime's libraries are; it is not imported, for it may be broken."""
    spec = importlib.util.find_spec("onnxruntime")
    return [Path(folder) / "capi" for folder in (spec and spec.submodule_search_locations) or ()]


def _versions(names: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of the distributions that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _torch_facts() -> dict[str, Any]:
    """Return what torch says."""
    try:
        torch = importlib.import_module("torch")
        sees = bool(torch.cuda.is_available())
        devices = range(torch.cuda.device_count() if sees else 0)
        gpus = [Gpu(torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i)) for i in devices]
    except (ImportError, OSError, RuntimeError, AssertionError) as error:
        return {"torch_error": f"{type(error).__name__}: {error}", "torch_sees_gpu": False}
    return {"torch_cuda": torch.version.cuda or "", "torch_sees_gpu": sees, "gpus": tuple(gpus)}


def _trial(provider: str) -> str:
    """Return why onnxruntime cannot run a model on a provider; empty if it can."""
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter, with a text of this file
            [sys.executable, "-P", "-c", _TRIAL, provider],
            capture_output=True,
            text=True,
            timeout=_TRIAL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_TRIAL_SECONDS} s"
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    loading = [line.split("with error: ")[1] for line in lines if "with error: " in line]
    return loading[0] if loading else (lines or [f"exit code {done.returncode}"])[-1]


def _driver_cuda() -> tuple[int, int] | None:
    """Return the newest CUDA version that the driver runs."""
    name = "nvcuda.dll" if platform.system() == "Windows" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
        version = ctypes.c_int()
        if driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return version.value // 1000, version.value % 1000 // 10


def _gpu_devices() -> bool:
    """Return whether the system shows NVIDIA devices."""
    if platform.system() == "Windows":
        return _driver_cuda() is not None
    places = (Path("/dev").glob("nvidia[0-9]*"), Path("/proc/driver/nvidia/gpus").glob("*"), Path("/dev").glob("dxg"))
    return any(True for place in places for _ in place)


def _libraries(cuda: str) -> dict[str, bool]:
    """Return whether the libraries of onnxruntime's CUDA provider are there, in wheels or where the linker looks."""
    if not cuda:
        return {}
    major = cuda.split(".")[0]
    names = [name.format(major) for name in _LIBRARIES]
    names += [_CUFFT[major]] if major in _CUFFT else []
    return {name: _found(name) for name in (*names, "libcudnn.so.9")}


def _found(name: str) -> bool:
    """Return whether a library is in a wheel of NVIDIA or where the linker looks."""
    for folder in map(Path, sys.path):
        if (folder / "tensorrt_libs" / name).is_file() or any(folder.glob(f"nvidia/*/lib/{name}")):
            return True
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
