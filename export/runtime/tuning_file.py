"""The file beside a model that holds what `tune` chose on this machine and on others."""

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime

from lit_gelu.errors import ModelFileError, shown
from lit_gelu.export.runtime.session import ON_CUDA_DEVICES, require_settings
from lit_gelu.files import parse_json, write_atomically

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TuningKey:
    """What a choice is good for."""

    onnxruntime: str  # its version
    provider: str  # the execution provider
    device: str  # the GPU's name, or the processor's with the number of cores that this process may use


@dataclass(frozen=True)
class TuningChoice:
    """What `tune` chose."""

    key: TuningKey  # what it is good for
    settings: Mapping[str, Any]  # value by name; empty if nothing was faster than the defaults
    ratio: float  # time beside the untuned session's, in the same run
    error: float  # largest error of an output, as a share of the largest output
    limit: float  # the largest error that was allowed
    batch_size: int  # rows that were measured

    def __str__(self) -> str:
        """Return one line."""
        chosen = ", ".join(f"{name}={value}" for name, value in self.settings.items()) or "the defaults"
        return f"{chosen}: {self.ratio:.2f} of the untuned time at batch {self.batch_size} on {self.key.device}"


def tuning_path(path: str | os.PathLike[str]) -> Path:
    """Return where the choices for a model are kept."""
    path = Path(path)
    return path.with_name(path.name + ".tuning.json")


def this_key(provider: str, device: "torch.device | str") -> TuningKey | None:
    """Return the key of this machine; ``None`` for a CUDA device that torch cannot name."""
    if provider in ON_CUDA_DEVICES:
        if not str(device).startswith("cuda"):
            return None
        import torch  # who works on its device has it

        name = torch.cuda.get_device_name(device)
    else:
        name = f"{processor()}, {cores()} cores"
    return TuningKey(onnxruntime.__version__, provider, name)


def processor() -> str:
    """Return the processor's name."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def cores() -> int:
    """Return how many cores this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return allowed or 1


def digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a model's file: choices for another export of it are not used."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def choices_beside(path: str | os.PathLike[str]) -> tuple[TuningChoice, ...]:
    """Return what was chosen for this very file, on whatever machine; refuse a file of choices that is damaged."""
    model, choices = _read(tuning_path(path))
    return choices if choices and model == digest(path) else ()


def read_choice(path: str | os.PathLike[str], key: TuningKey) -> TuningChoice | None:
    """Return what was chosen for this very file on one machine, if anything."""
    return next((choice for choice in choices_beside(path) if choice.key == key), None)


def write_choice(path: str | os.PathLike[str], choice: TuningChoice) -> Path:
    """Keep a choice beside a model, with those of other machines for the same file, and return where."""
    others = [other for other in choices_beside(path) if other.key != choice.key]
    _write(tuning_path(path), digest(path), [*others, choice])
    return tuning_path(path)


def keep_choices(path: str | os.PathLike[str], before: str) -> None:
    """Let choices for a file, by its `digest`, hold for what took its place: the same model with other notes in it."""
    try:
        model, choices = _read(tuning_path(path))
    except ModelFileError:
        return  # who opens the model hears of it
    if choices and model == before:
        _write(tuning_path(path), digest(path), choices)


def _write(file: Path, model: str, choices: Sequence[TuningChoice]) -> None:
    content = {"format": 1, "model_sha256": model, "choices": [asdict(choice) for choice in choices]}
    with write_atomically(file) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _read(file: Path) -> tuple[str, tuple[TuningChoice, ...]]:
    """Return the digest of the model and the choices that a file holds; nothing where there is no file."""
    if not os.path.lexists(file):
        return "", ()
    try:
        match parse_json(file.read_bytes()):
            case {"format": 1, "model_sha256": str() as model, "choices": list() as entries}:
                return model, tuple(_choice(entry, file) for entry in entries)
            case content:
                problem = shown(content)
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, ModelFileError):
            raise
        problem = f"{type(error).__name__}: {error}"
    raise ModelFileError(
        f"{str(file)!r} does not hold what tune() writes ({problem}). Delete it, run tune() again, or open the model "
        "with tuning=False."
    )


def _choice(entry: Any, file: Path) -> TuningChoice:
    """Return one entry as a choice: a file from elsewhere must not set anything that `tune` does not."""
    match entry:
        case {
            "key": {
                "onnxruntime": str() as version,
                "provider": str() as provider,
                "device": str() as device,
                **no_more,
            },
            "settings": dict() as settings,
            "ratio": int() | float() as ratio,
            "error": int() | float() as error,
            "limit": int() | float() as limit,
            "batch_size": int() as batch_size,
            **nothing,
        } if not (no_more or nothing or any(isinstance(each, bool) for each in (ratio, error, limit, batch_size))):
            require_settings(settings, repr(str(file)))
            return TuningChoice(TuningKey(version, provider, device), settings, ratio, error, limit, batch_size)
    raise ValueError(f"the entry {shown(entry)}")
