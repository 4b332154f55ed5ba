"""The file beside a model that holds what `tune` chose for it on a machine."""

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime

from lit_gelu.errors import ModelFileError, message_of
from lit_gelu.export.runtime.session import ON_CUDA_DEVICES
from lit_gelu.files import parse_json, require_no_pipe, write_atomically

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TuningChoice:
    """What `tune` chose."""

    onnxruntime: str  # its version
    provider: str  # the execution provider
    device: str  # the GPU's name, or the processor's with the number of cores that this process may use
    settings: Mapping[str, Any]  # value by name; empty if nothing was faster than the defaults
    ratio: float  # time beside the untuned session's, in the same run
    error: float  # largest difference of an output from the untuned session's, as a share of the largest output
    limit: float  # the largest difference that was allowed
    batch_size: int  # rows that were measured

    def __str__(self) -> str:
        """Return one line."""
        chosen = ", ".join(f"{name}={value}" for name, value in self.settings.items()) or "the defaults"
        return f"{chosen}: {self.ratio:.2f} of the untuned time at batch {self.batch_size} on {self.device}"


def tuning_path(path: str | os.PathLike[str]) -> Path:
    """Return where the choice for a model is kept."""
    path = Path(path)
    return path.with_name(path.name + ".tuning.json")


def device_name(provider: str, device: "torch.device | str") -> str | None:
    """Return what a choice is good for; ``None`` for a CUDA device that torch cannot name."""
    if provider not in ON_CUDA_DEVICES:
        return f"{processor()}, {cores()} cores"
    if not str(device).startswith("cuda"):
        return None
    import torch  # who works on its device has it

    return torch.cuda.get_device_name(device)


def processor() -> str:
    """Return the processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cores() -> int:
    """Return how many cores this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return allowed or 1


def digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a model's file: a choice for another export of it is not used."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_choice(path: str | os.PathLike[str]) -> TuningChoice | None:
    """Return what was chosen for this very file, on whatever machine; refuse a damaged file of a choice."""
    model, choice = _read(tuning_path(path))
    return choice if choice is not None and model == digest(path) else None


def choice_for(path: str | os.PathLike[str], provider: str, device: "torch.device | str") -> TuningChoice | None:
    """Return what was chosen for this very file on this machine, if anything."""
    choice = read_choice(path)
    here = (onnxruntime.__version__, provider, device_name(provider, device))
    return choice if choice is not None and (choice.onnxruntime, choice.provider, choice.device) == here else None


def write_choice(path: str | os.PathLike[str], choice: TuningChoice) -> Path:
    """Keep a choice beside a model, and return where."""
    content = {"model_sha256": digest(path), "choice": asdict(choice)}
    with write_atomically(tuning_path(path)) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return tuning_path(path)


def keep_choice(path: str | os.PathLike[str], before: str) -> None:
    """Let the choice for a file, by its `digest`, hold for what took its place: the same model with other notes."""
    try:
        model, choice = _read(tuning_path(path))
    except ModelFileError:
        return  # who opens the model hears of it
    if choice is not None and model == before:
        write_choice(path, choice)


def _read(file: Path) -> tuple[str, TuningChoice | None]:
    """Return the digest of the model and the choice that a file holds; nothing where there is no file."""
    if not file.exists():
        return "", None
    try:
        require_no_pipe(file)
        content = parse_json(file.read_bytes())
        return content["model_sha256"], TuningChoice(**content["choice"])
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{str(file)!r} does not hold what tune() writes ({message_of(error)}). Delete it, run tune() again, or "
            "open the model with tuning=False."
        ) from error
