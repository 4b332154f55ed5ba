"""Sessions of onnxruntime that run where they were asked to, or not at all: and their providers."""

import contextlib
import ctypes
import difflib
import importlib
import logging
import os
import platform
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from lit_gelu.cuda_versions import mismatch, tensorrt_library, tensorrt_wheel
from lit_gelu.errors import ModelFileError, ProviderError
from lit_gelu.export.runtime.model_file import ModelFile, read_model_file
from lit_gelu.export.runtime.placement import RECORD, named, placement_of, without_shape_arithmetic
from lit_gelu.files import captured_stdout

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
ON_CUDA_DEVICES = frozenset({CUDA, TENSORRT})  # their tensors are torch's CUDA tensors

Provider = str | tuple[str, Mapping[str, Any]]


def default_providers(*, tf32: bool = False) -> list[Provider]:
    """Return CUDA where it works, with the CPU behind it, else the CPU."""
    # onnxruntime names the CUDA provider as available on machines without a GPU, and prints errors when it is asked for
    # it there. TF32 costs float32 products three decimal digits; without it float16 convolutions run outside of the
    # tensor cores too (measured: 1.9 against 9.6 ms), so it stays on for files in 16 bit.
    if CUDA in onnxruntime.get_available_providers() and has_cuda_device():
        return [(CUDA, {"use_tf32": int(tf32)}), CPU]
    return [CPU]


def has_cuda_device() -> bool:
    """Return whether there is a CUDA device: as torch says if it was imported, else as the driver does."""
    if torch := sys.modules.get("torch"):
        return bool(torch.cuda.is_available())
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("nvcuda.dll" if platform.system() == "Windows" else "libcuda.so.1")
        return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    except (OSError, AttributeError):
        return False


def provider_name(provider: Provider) -> str:
    """Return the name of a provider, given with or without options."""
    return provider if isinstance(provider, str) else str(provider[0]) if provider else ""


def checked_providers(providers: Sequence[Provider] | None, *, tf32: bool = False) -> dict[str, dict[str, str]]:
    """Check a list of providers, and return options as text by name."""
    if providers is None:  # CUDA alone where it works: nobody asked for a part of the file to run on the CPU behind it
        providers = default_providers(tf32=tf32)[:1]
    if isinstance(providers, str):
        raise ProviderError(f"providers={providers!r} is text. Give a list: providers=[{providers!r}].")
    if not providers:
        raise ProviderError("providers=[] names no execution provider. Give providers=None for the default ones.")
    available = onnxruntime.get_available_providers()
    checked: dict[str, dict[str, str]] = {}
    for provider in providers:
        name = provider_name(provider)
        if name not in available:
            near = difflib.get_close_matches(name, available, n=1, cutoff=0.4)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ProviderError(
                f"Unknown execution provider {name!r}.{hint} In this installation: {', '.join(map(repr, available))}."
            )
        options = {} if isinstance(provider, str) or len(provider) < 2 else provider[1]
        if name in checked or (name == CPU and options):
            why = "is given twice. Give each provider once" if name in checked else "takes no options: use sess_options"
            raise ProviderError(f"{name} {why}.")
        checked[name] = {str(key): str(value) for key, value in options.items()}
    return checked


_log = logging.getLogger(__name__)
EXACT_SUMS = "session.x64quantprecision"  # int8 on x86 without VNNI: 32-bit sums, at half the speed

_FILE_ERRORS: tuple[type[Exception], ...] = (
    ort_errors.InvalidProtobuf, ort_errors.InvalidGraph, ort_errors.NoSuchFile, ort_errors.NotImplemented,
    ort_errors.NoModel, ort_errors.InvalidArgument,
)  # fmt: skip
_OTHER_ERRORS = (ort_errors.Fail, ort_errors.EPFail, ort_errors.RuntimeException, RuntimeError, ValueError)


class CpuFallbackWarning(UserWarning):
    """Part of a file runs on the CPU although another provider was asked for first, and the CPU behind it."""


def open_session(
    path: str | os.PathLike[str],
    providers: Sequence[Provider] | None = None,
    sess_options: onnxruntime.SessionOptions | None = None,
    *,
    model: ModelFile | None = None,
) -> onnxruntime.InferenceSession:
    """Return onnxruntime's session of a file, on the provider that was asked for or not at all.

    onnxruntime falls back to the CPU without a word when a provider's libraries are missing, when an option is
    misspelt, or for a node that the provider has no kernel for. Here the first two are errors. So is the third, unless
    the CPU is named behind the provider: then a `CpuFallbackWarning` says which nodes run there. Nodes that compute
    sizes alone are no fallback: onnxruntime puts them on the CPU on purpose, where sizes are, and no tensor travels.

    Raises:
        ModelFileError: If the file is missing, damaged, or no model that onnxruntime can run.
        ProviderError: If a provider does not exist here, has no such option, or did not take the whole file.

    Returns:
        The session; it has recorded which provider runs which node.
    """
    model = read_model_file(path) if model is None else model
    checked = checked_providers(providers, tf32=model.sixteen_bit)
    first = next(iter(checked))
    if first != CPU:
        _load_cuda_libraries(first)
    if TENSORRT in checked:
        _load_tensorrt()
    options = onnxruntime.SessionOptions() if sess_options is None else sess_options
    for key in (RECORD, EXACT_SUMS) if model.saturates else (RECORD,):
        with contextlib.suppress(RuntimeError):  # of a key that is not set
            if options.get_session_config_entry(key):
                continue
        options.add_session_config_entry(key, "1")
    # On x86-64 NchwcTransformer follows a null pointer where a Transpose stands in front of a Cast from 16 bits, which
    # onnxruntime puts ahead of what its CPU has no kernel for: a transformer in float16 (onnxruntime's issue 28392, in
    # 1.24 to 1.31). On a GPU it does nothing.
    crashing = ["NchwcTransformer"] if model.sixteen_bit and "Transpose" in model.operators else []
    # Where the first device's number is given, onnxruntime 1.31 looks for the provider among plugins on that device,
    # and warns that none is registered, in every session.
    without_first_device = [
        (name, {key: value for key, value in settings.items() if (key, value) != ("device_id", "0")})
        for name, settings in checked.items()
    ]
    try:
        session = onnxruntime.InferenceSession(
            os.fspath(model.path),
            options,
            providers=without_first_device,
            disabled_optimizers=crashing,
            enable_fallback=0,  # else a failure prints a banner and the session runs on the CPU
        )
    except (*_FILE_ERRORS, *_OTHER_ERRORS) as error:
        if isinstance(error, _FILE_ERRORS) or first == CPU:
            raise ModelFileError(_not_loaded(model, first, error)) from error
        raise ProviderError(
            f"onnxruntime cannot open {str(model.path)!r} on {', '.join(checked)}: {error}. See `lit-gelu doctor`."
        ) from error
    if (got := session.get_providers()[0]) != first:
        raise ProviderError(
            f"{first} was asked for, but onnxruntime fell back to {got}: libraries or device are missing, or it has no "
            f"such option or value ({checked[first]}). See `lit-gelu doctor`, or pass providers=['{CPU}']."
        )
    if first != CPU:
        _judge_cpu_nodes(session, model, checked)
    return session


def _judge_cpu_nodes(session: onnxruntime.InferenceSession, model: ModelFile, checked: Mapping[str, Any]) -> None:
    """Refuse nodes that ended up on the CPU, or warn where the CPU was named behind the provider."""
    placement, first = placement_of(session), next(iter(checked))
    nodes = without_shape_arithmetic(model.path, (node for node in placement.nodes if node.provider == CPU))
    if not nodes:
        return
    message = (
        f"{len(nodes)} of {len(placement.nodes)} nodes of {str(model.path)!r} run on the CPU, not on {first}: "
        f"{named(nodes)}. {first} has no kernel for them, or they make data out of sizes; their tensors travel between "
        "both at every call."
    )
    if CPU not in checked:
        raise ProviderError(
            f"{message} Export the file for it (target=, opset=), or accept it: providers=['{first}', '{CPU}']."
        )
    warnings.warn(message, CpuFallbackWarning, stacklevel=4)


def _load_cuda_libraries(provider: str) -> None:
    """Load cuBLAS, cuDNN and cuRAND from their wheels: torch no longer loads all of them."""
    torch = sys.modules.get("torch")
    if torch is not None and (wrong := mismatch(torch.version.cuda, onnxruntime.cuda_version)):
        raise ProviderError(f"{provider} cannot run beside torch here: {wrong[0]}. To mend it, {wrong[1]}.")
    with captured_stdout() as printed:  # it prints what it cannot load
        onnxruntime.preload_dlls()
    for line in printed.getvalue().splitlines():
        _log.warning("onnxruntime.preload_dlls: %s", line)


def _load_tensorrt() -> None:
    """Load TensorRT, from its wheel if that is installed."""
    name = tensorrt_library(Path(onnxruntime.__file__).parent / "capi")
    with contextlib.suppress(ImportError, OSError):
        importlib.import_module("tensorrt_libs")  # loads what lies in it, where no linker looks
    try:
        ctypes.CDLL(name)
    except OSError as error:
        raise ProviderError(
            f"onnxruntime {onnxruntime.__version__} needs TensorRT's {name}, which cannot be loaded ({error}). "
            f"`{tensorrt_wheel(name, onnxruntime.cuda_version)}` brings it; `lit-gelu doctor` says what is there."
        ) from error


def _not_loaded(model: ModelFile, provider: str, error: Exception) -> str:
    """Say why a file is not loaded, as far as is known, and what to do."""
    release = f"onnxruntime {onnxruntime.__version__}"
    if isinstance(error, ort_errors.NotImplemented) and model.bfloat16 and provider == CPU:
        return (
            f"{release}'s CPU provider has no bfloat16 kernel for a node of {str(model.path)!r}: this file runs on a "
            f"GPU only (providers=['{CUDA}']). Export with dtype='fp16' or 'fp32' for the CPU, and without "
            f"torch.autocast or .bfloat16() in forward: {error}"
        )
    versions = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in model.opsets.items())
    return (
        f"{release} cannot load {str(model.path)!r} (operator sets: {versions}): it is damaged, needs operators or an "
        "operator set that onnxruntime does not know (then export it with a lower opset=), or one of onnxruntime's own "
        f"optimisations fails (then a lower graph_optimization_level in sess_options helps): {error}"
    )
