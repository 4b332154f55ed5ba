"""Where a run was made: versions, processor, GPU, commit; no name or path of the machine."""

import importlib.metadata
import platform
import subprocess

_DISTRIBUTIONS = (
    "lit-gelu",
    "torch",
    "lightning",
    "torchmetrics",
    "torchvision",
    "numpy",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "onnxruntime-gpu",
)
_SECONDS = 10  # that git may take


def environment() -> dict[str, str]:
    """Return what of this machine and installation a reader of results needs, as text by name.

    Example:
        >>> sorted({"Python", "Processor", "torch"} & environment().keys())
        ['Processor', 'Python', 'torch']
    """
    from lit_gelu.export.runtime.tuning_file import cores, processor

    found = {
        "Python": platform.python_version(),
        "System": f"{platform.system()} {platform.machine()}",
        "Processor": f"{processor()}, {cores()} cores",
        "GPU": _gpus() or "none that torch can use",
    }
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    commit = _said("rev-parse", "HEAD")
    if commit:
        changed = _said("status", "--porcelain", "--untracked-files=no")
        found["Commit"] = f"{commit}{' with changes that are not committed' if changed else ''}"
    return found


def _gpus() -> str:
    """Return the names of the GPUs that torch can use."""
    import torch

    if not torch.cuda.is_available():
        return ""
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"{', '.join(names)} (CUDA {torch.version.cuda})"


def _said(*arguments: str) -> str:
    """Return what git says of the current folder; empty where there is no git or no repository."""
    command = ["git", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)  # noqa: S603 - two of this file
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
