"""The file beside a model that holds what `tune` chose on this machine and on others."""

import hashlib
import json
import os
import platform
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime

from lit_gelu.export.errors import ModelFileError
from lit_gelu.export.runtime.providers import ON_CUDA_DEVICES
from lit_gelu.export.runtime.settings import require_settings
from lit_gelu.files import parse_json, write_atomically

if TYPE_CHECKING:
    import torch

FORMAT = 1


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


def read_choice(path: str | os.PathLike[str], key: TuningKey) -> TuningChoice | None:
    """Return what was chosen for this very file on a machine, if anything; refuse a file that is damaged or foreign."""
    file = tuning_path(path)
    if not os.path.lexists(file):
        return None
    content = _read(file)
    if content["model_sha256"] != digest(path):
        return None
    for entry in content["choices"]:
        choice = _choice(entry, file)
        if choice.key == key:
            require_settings(choice.settings, repr(str(file)))
            return choice
    return None


def choices_beside(path: str | os.PathLike[str]) -> tuple[TuningChoice, ...]:
    """Return what was chosen for this very file, on whatever machine."""
    file = tuning_path(path)
    content = _read(file) if os.path.lexists(file) else {"model_sha256": ""}
    return (
        tuple(_choice(entry, file) for entry in content["choices"]) if content["model_sha256"] == digest(path) else ()
    )


def require_readable(path: str | os.PathLike[str]) -> None:
    """Refuse a file of choices that `write_choice` cannot add to, before anything is measured."""
    if os.path.lexists(tuning_path(path)):
        _read(tuning_path(path))


def write_choice(path: str | os.PathLike[str], choice: TuningChoice) -> Path:
    """Keep a choice beside a model, with those of other machines for the same file, and return where."""
    file, model = tuning_path(path), digest(path)
    entries = []
    if os.path.lexists(file):
        content = _read(file)
        if content["model_sha256"] == model:
            entries = [entry for entry in content["choices"] if _choice(entry, file).key != choice.key]
    entries.append(asdict(choice))
    _write(file, model, entries)
    return file


def keep_choices(path: str | os.PathLike[str], before: str) -> None:
    """Let choices for a file, by its `digest`, hold for what took its place: the same model with other notes in it."""
    file = tuning_path(path)
    if not os.path.lexists(file):
        return
    try:
        content = _read(file)
    except ModelFileError:
        return  # who opens the model hears of it
    if content["model_sha256"] == before:
        _write(file, digest(path), content["choices"])


def _write(file: Path, model: str, choices: Sequence[Any]) -> None:
    """Write a file of choices for a model of a digest."""
    with write_atomically(file) as temporary:
        text = json.dumps({"format": FORMAT, "model_sha256": model, "choices": choices}, indent=2)
        temporary.write_text(text + "\n", encoding="utf-8")


def _read(file: Path) -> dict[str, Any]:
    """Return the content of a file of choices."""
    try:
        content = parse_json(file.read_bytes())
        if (
            content["format"] == FORMAT
            and isinstance(content["model_sha256"], str)
            and isinstance(content["choices"], list)
        ):
            return dict(content)
        problem = f"format {content['format']!r}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise ModelFileError(
        f"{str(file)!r} does not hold what tune() writes ({problem}). Delete it, run tune() again, or open the model "
        "with tuning=False."
    )


def _choice(entry: Any, file: Path) -> TuningChoice:
    """Return one entry as a choice."""
    try:
        choice = TuningChoice(**{**entry, "key": TuningKey(**entry["key"])})
        numbers = (choice.ratio, choice.error, choice.limit, choice.batch_size)
        wrong = [number for number in numbers if isinstance(number, bool) or not isinstance(number, (int, float))]
        if isinstance(choice.settings, dict) and not wrong:
            return choice
        problem = f"{reprlib.repr(wrong[0])} is no number" if wrong else f"settings {reprlib.repr(choice.settings)}"
    except (KeyError, TypeError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise ModelFileError(
        f"{str(file)!r} holds an entry that tune() does not write ({problem}). Delete it, run tune() again, or open "
        "the model with tuning=False."
    )
