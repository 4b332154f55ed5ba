"""``lit-gelu doctor``: say what is wrong with this installation, and how to mend it."""

import importlib
import importlib.metadata
import importlib.util
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lit_gelu.cli.terminal import console_for_output
from lit_gelu.cuda_versions import mismatch

_SHOWN = ("lit-gelu", "torch", "lightning", "onnx", "onnxscript", "numpy")
_NVIDIA = ((Path("/dev"), "nvidia[0-9]*"), (Path("/proc/driver/nvidia/gpus"), "*"), (Path("/dev"), "dxg"))
_TRIAL_SECONDS = 120
# In a process of its own: a library that crashes while it is loaded does not take the doctor along.
_TRIAL = """
import sys
import numpy, onnx, onnxruntime
from onnx import TensorProto, helper
provider = sys.argv[1]
options = onnxruntime.SessionOptions()
if provider != "CPUExecutionProvider":
    import torch
    onnxruntime.preload_dlls()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])
graph = helper.make_graph([helper.make_node("Gelu", ["x"], ["y"])], "trial", [value("x")], [value("y")])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[provider], enable_fallback=0)
y = session.run(None, {"x": numpy.ones(4, numpy.float32)})[0]
assert abs(float(y[0]) - 0.8413447) < 1e-4, f"GELU(1) = {y[0]}"
assert session.get_providers()[0] == provider, session.get_providers()
"""


@dataclass(frozen=True)
class Finding:
    """What one check gave: what is broken must be mended, a note explains what will not be used."""

    level: Literal["ok", "note", "broken"]
    check: str
    text: str
    remedy: str = ""  # empty if there is nothing to mend


def doctor() -> int:
    """Say what is wrong with this installation, and how to mend it.

    exit code: 0 if nothing is broken, 1 if something is, 2 for a mistake in the arguments

    in a shell:
      lit-gelu doctor
    """
    versions = {"platform": f"{platform.system()} {platform.machine()}", "Python": platform.python_version()}
    for name in (*_SHOWN, *_onnxruntime_wheels()):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    findings = list(examine())
    broken = sum(finding.level == "broken" for finding in findings)
    console = console_for_output(highlight=False, soft_wrap=True)
    console.print(", ".join(f"{name} {version}" for name, version in versions.items()))
    for finding in findings:
        remedy = f"\n       to mend it: {finding.remedy}" if finding.remedy else ""
        console.print(f"{finding.level:<7}{finding.check}: {finding.text}{remedy}")
    console.print(f"{broken} broken" if broken else "nothing is broken")
    return 1 if broken else 0


def examine() -> Iterator[Finding]:
    """Examine this installation. Nothing here fails because the installation is broken."""
    torch: Any = None
    try:
        torch = importlib.import_module("torch")
        built = _built_for(torch.version.cuda)
    except Exception as error:  # noqa: BLE001 - a broken package may raise anything
        torch = None
        yield Finding("broken", "torch", f"cannot be imported: {error}", "pip uninstall -y torch && pip install torch")
    else:
        yield Finding("ok", "torch", f"built {built}")
    yield from _onnxruntime()
    if torch is not None and torch.cuda.is_available():
        yield from _gpu(torch)
    elif any(any(folder.glob(pattern)) for folder, pattern in _NVIDIA):
        remedy = "install NVIDIA's driver and torch for its CUDA: torch.zeros(1, device='cuda') says what is missing"
        yield Finding("broken", "GPU", "there is an NVIDIA GPU, but torch cannot use it", remedy)
    else:
        yield Finding("note", "GPU", "no NVIDIA GPU here: exported files run on the CPU")


def _onnxruntime_wheels() -> list[str]:
    return sorted({name for name in importlib.metadata.packages_distributions().get("onnxruntime", ()) if name})


def _onnxruntime() -> Iterator[Finding]:
    # Two overwrite each other's files, the last one wins, and removing one leaves an empty package.
    wheels = _onnxruntime_wheels()
    has_gpu_wheels = platform.system() in {"Linux", "Windows"} and platform.machine() in {"x86_64", "AMD64"}
    install = f"pip install {'onnxruntime-gpu' if has_gpu_wheels else 'onnxruntime'}"
    if len(wheels) > 1:
        text = f"{' and '.join(wheels)} are installed together; they have the same files, and the last one wins"
        install = f"pip uninstall -y {' '.join(wheels)} && {install}"
        yield Finding("broken", "onnxruntime wheels", text, install)
    elif not wheels:
        yield Finding("broken", "onnxruntime wheels", "none is installed", install)
    else:
        yield Finding("ok", "onnxruntime wheels", f"one: {wheels[0]}")
        install = f"pip install --force-reinstall --no-deps {wheels[0]}"
    yield _tried("onnxruntime", "CPUExecutionProvider", install)


def onnxruntime_cuda() -> str:
    """Return the CUDA version that onnxruntime says it was built for; empty for a build without, or none."""
    # It is not imported, for it may be broken.
    spec = importlib.util.find_spec("onnxruntime")
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder) / "capi" / "build_and_package_info.py"
        match = re.search(r"cuda_version\s*=\s*['\"]([\d.]+)", file.read_text("utf-8")) if file.is_file() else None
        if match:
            return match[1]
    return ""


def _gpu(torch: Any) -> Iterator[Finding]:
    yield Finding("ok", "GPU", ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())))
    cuda = onnxruntime_cuda()
    if not cuda:
        remedy = f"pip uninstall -y {' '.join(_onnxruntime_wheels())} && pip install onnxruntime-gpu"
        yield Finding("broken", "CUDA versions", "there is a GPU, but onnxruntime is built without CUDA", remedy)
        return
    differing = mismatch(torch.version.cuda, cuda)
    if differing is not None:
        yield Finding("broken", "CUDA versions", *differing)
    else:
        yield Finding("ok", "CUDA versions", f"torch and onnxruntime are both built {_built_for(cuda)}")
    remedy = "mend what is said above; else `python -c 'import onnxruntime; onnxruntime.print_debug_info()'` says more"
    yield _tried("a model on CUDA", "CUDAExecutionProvider", remedy)


def _built_for(cuda: str | None) -> str:
    return f"for CUDA {cuda}" if cuda else "without CUDA"


def _tried(check: str, provider: str, remedy: str) -> Finding:
    fault = _trial(provider)
    return Finding("broken", check, fault, remedy) if fault else Finding("ok", check, f"{provider} runs a model")


def _trial(provider: str) -> str:
    """Return why onnxruntime cannot run a model on a provider; empty if it can."""
    command = [sys.executable, "-P", "-c", _TRIAL, provider]
    try:
        done = subprocess.run(command, capture_output=True, errors="replace", timeout=_TRIAL_SECONDS, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return f"no answer within {_TRIAL_SECONDS} s"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return (lines or [f"exit code {done.returncode}"])[-1] if done.returncode else ""
