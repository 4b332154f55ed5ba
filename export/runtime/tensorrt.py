"""TensorRT through onnxruntime: its libraries out of their wheel, and its engines in a folder beside the file."""

import contextlib
import ctypes
import hashlib
import importlib
import os
from pathlib import Path

import onnxruntime

from lit_gelu.cuda_versions import tensorrt_library, tensorrt_wheel
from lit_gelu.export.errors import ProviderError
from lit_gelu.export.runtime.model_file import ModelFile

_OF_THE_DEVICE = frozenset({"device_id", "has_user_compute_stream", "user_compute_stream"})


def load_tensorrt() -> int:
    """Load TensorRT, from its wheel if that is installed, and return its version, such as 101601 for 10.16.1."""
    name = tensorrt_library(Path(onnxruntime.__file__).parent / "capi")
    with contextlib.suppress(ImportError, OSError):
        importlib.import_module("tensorrt_libs")  # loads what lies in it, where no linker looks
    try:
        return int(ctypes.CDLL(name).getInferLibVersion())
    except OSError as error:
        raise ProviderError(
            f"onnxruntime {onnxruntime.__version__} needs TensorRT's {name}, which cannot be loaded ({error}). "
            f"`{tensorrt_wheel(name, onnxruntime.cuda_version)}` brings it; `lit-gelu doctor` says what is there."
        ) from error


def keep_engines(model: ModelFile, options: dict[str, str], version: int) -> None:
    """Let engines and the times of kernels be kept beside the file, unless the options say anything of engines."""
    # onnxruntime finds an engine by names: the file's, its inputs', its nodes' outputs', not by weights or options
    # (https://github.com/microsoft/onnxruntime/issues/6455). So each content with each options has a folder.
    if any(name.startswith(("trt_engine_cache", "trt_dump_ep_context", "trt_ep_context")) for name in options):
        return
    kept = model.path.absolute().with_name(model.path.name + ".tensorrt")
    engines = kept / f"{version}-{_digest(model, options)[:16]}"
    try:
        engines.mkdir(parents=True, exist_ok=True)
        if not os.access(engines, os.W_OK) and not any(engines.glob("*.engine")):
            raise PermissionError("it is read-only and holds none")
    except OSError as error:
        raise ProviderError(
            f"TensorRT's engines cannot be kept in {str(engines)!r}: {error}. Make it writable, name another folder "
            "with the provider's option trt_engine_cache_path, or keep none: trt_engine_cache_enable=0."
        ) from error
    options.update(trt_engine_cache_enable="1", trt_engine_cache_path=str(engines))
    options.setdefault("trt_timing_cache_enable", "1")
    options.setdefault("trt_timing_cache_path", str(kept))


def _digest(model: ModelFile, options: dict[str, str]) -> str:
    """Return the SHA-256 of a file, the weights beside it and what engines depend on of the options."""
    said = [item for item in sorted(options.items()) if item[0] not in _OF_THE_DEVICE]
    whole = hashlib.sha256(repr([*said, os.environ.get("NVIDIA_TF32_OVERRIDE")]).encode())
    for name in (model.path.name, *model.external):
        with (model.path.parent / name).open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()
