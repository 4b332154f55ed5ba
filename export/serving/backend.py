"""What `lit_gelu.export.tune` chose, in the words of Triton's onnxruntime backend."""

from dataclasses import dataclass, field
from pathlib import Path

import torch

from lit_gelu.export.errors import ExportOptionError
from lit_gelu.export.runtime.model_file import ModelFile
from lit_gelu.export.runtime.providers import CPU, CUDA
from lit_gelu.export.runtime.settings import Settings, provider_options
from lit_gelu.export.runtime.tuning_file import TuningChoice, read_choice, this_key

PROVIDERS = {"cpu": CPU, "gpu": CUDA}

# The backend's numbers for ``optimization.graph.level``; all optimisations run where none is given.
_LEVELS = {"basic": -1, "extended": 1, "disabled": 2}
# Its numbers for cuDNN's search of convolutions. It reads them from ``parameters``, and, where these hold no number,
# searches exhaustively whatever the accelerator's options say (``LoadModel`` in its onnxruntime.cc).
_SEARCH = "cudnn_conv_algo_search"
_SEARCHES = {"EXHAUSTIVE": "0", "HEURISTIC": "1", "DEFAULT": "2"}
_PARAMETERS = {"intra_op_num_threads": "intra_op_thread_count", "enable_mem_pattern": "enable_mem_pattern"}


@dataclass(frozen=True)
class BackendSettings:
    """Settings of Triton's onnxruntime backend."""

    # ``optimization.graph.level``; None for the backend's default, which is all optimisations.
    graph_level: int | None = None
    parameters: dict[str, str] = field(default_factory=dict)  # parameters of the model, as text
    # Options of the cuda accelerator, which become those of onnxruntime's CUDA provider.
    cuda: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()  # settings that the backend has no name for


def backend_settings(device: str, settings: Settings, *, sixteen_bit: bool) -> BackendSettings:
    """Return settings as the backend takes them."""
    # On a GPU ``use_tf32`` is always written: onnxruntime's own default is to compute float32 products in TF32, with
    # three decimal digits less, and neither `OnnxPredictor` nor the proof of a file does that. Files in 16 bit need it
    # for the tensor cores.
    taken = provider_options(settings) if device == "gpu" else {}
    parameters = {word: str(int(settings[name])) for name, word in _PARAMETERS.items() if name in settings}
    if _SEARCH in taken:
        parameters[_SEARCH] = _SEARCHES[taken[_SEARCH]]
    known = {*taken, *_PARAMETERS, "graph_optimization_level"}
    return BackendSettings(
        graph_level=_LEVELS.get(settings.get("graph_optimization_level", "all")),
        parameters=parameters,
        cuda={"use_tf32": str(int(sixteen_bit)), **taken} if device == "gpu" else {},
        left_out=tuple(f"{name}={value}" for name, value in settings.items() if name not in known),
    )


def choice_for(path: Path, device: str, tuning: bool | TuningChoice) -> TuningChoice | None:
    """Return the given choice, or the one that is kept beside the file for this machine, if there is one."""
    provider = PROVIDERS[device]
    if isinstance(tuning, TuningChoice):
        if tuning.key.provider != provider:
            raise ExportOptionError(
                f"tuning= is a choice for {tuning.key.provider}, and device={device!r} is {provider}. Give one of that "
                "provider, or tuning=False."
            )
        return tuning
    on = torch.device("cuda" if device == "gpu" and torch.cuda.is_available() else "cpu")
    key = this_key(provider, on) if tuning else None
    return None if key is None else read_choice(path, key)


def tuning_notes(choice: TuningChoice | None, left_out: tuple[str, ...], model: ModelFile) -> list[str]:
    """Say what was taken over, and what could not be."""
    notes = [] if choice is None else [f"{model.path.name} is configured as tuned: {choice}."]
    if left_out:
        notes.append(f"Triton's onnxruntime backend has no name for {', '.join(left_out)}: it runs without.")
    return notes
