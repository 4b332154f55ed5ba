"""What the figures of a stage depend on: machine, versions and code."""

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import lit_gelu.callbacks
import lit_gelu.export
from lit_gelu.export.runtime.bench import processor

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("lit-gelu", "lightning", "numpy", "onnx", "onnxruntime-gpu", "onnxruntime", "onnxscript", "triton")


def facts(device: str, commit: str) -> dict[str, Any]:
    """Return all of it.

    Args:
        device: ``cuda`` or ``cpu``.
        commit: What was checked out; empty if git is to say.

    Returns:
        ``machine``, ``versions``, ``commit`` and ``sources``.
    """
    return {"machine": machine(device), "versions": versions(), "commit": checked_out(commit), "sources": sources()}


def machine(device: str) -> dict[str, Any]:
    """Return what computes."""
    facts: dict[str, Any] = {
        "platform": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": processor(),
    }
    if device == "cuda" and torch.cuda.is_available():
        about = torch.cuda.get_device_properties(0)
        facts["device"] = about.name
        facts["device_gib"] = round(about.total_memory / 2**30, 1)
        facts["compute_capability"] = f"{about.major}.{about.minor}"
        facts["driver"] = _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"])
    return facts


def versions() -> dict[str, str | None]:
    """Return versions of what is installed, CUDA's and cuDNN's of torch among them."""
    releases: dict[str, str | None] = {"python": platform.python_version(), "torch": torch.__version__}
    for name in PACKAGES:
        try:
            releases[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            releases[name] = None
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    return {**releases, "cuda": torch.version.cuda, "cudnn": None if cudnn is None else str(cudnn)}


def checked_out(commit: str) -> str:
    """Return what was given: a copied repository may be older; else the commit, and ``+changes`` if there are any."""
    if commit:
        return commit
    commit = _output(["git", "rev-parse", "HEAD"])
    if not commit:
        return "unknown"
    return commit + ("+changes" if _output(["git", "status", "--porcelain", "--untracked-files=no"]) else "")


def sources() -> str:
    """Return a digest of the code that ran, the package's and the benchmarks'."""
    packages = (lit_gelu, lit_gelu.callbacks, lit_gelu.export)
    folders = {package.__name__.replace(".", "/"): Path(str(package.__file__)).parent for package in packages}
    return digest_of({**folders, "benchmarks": ROOT / "benchmarks"})


def digest_of(folders: Mapping[str, Path]) -> str:
    """Return a digest of the Python files in folders, by their names: the same for the same code, wherever it lies."""
    code = {}
    for name, folder in folders.items():
        for path in folder.rglob("*.py"):
            code[f"{name}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    digest = hashlib.sha256()
    for name in sorted(code):
        digest.update(name.encode() + b"\0" + code[name] + b"\0")
    return digest.hexdigest()[:16]


def _output(command: list[str]) -> str:
    """Return what a command prints; nothing where it fails or is not there."""
    alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(ROOT.parent)}  # not of a repository around the checkout
    try:
        done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, timeout=20, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
