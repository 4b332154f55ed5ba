"""Execution providers: their names, the default ones, and what is wrong with a list of them."""

import ctypes
import difflib
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import onnxruntime

from lit_gelu.errors import ProviderError

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
ON_CUDA_DEVICES = frozenset({CUDA, TENSORRT})  # their tensors are torch's CUDA tensors

Provider = str | tuple[str, Mapping[str, Any]]


def default_providers(*, tf32: bool = False) -> list[Provider]:
    """Return CUDA where it works, with the CPU behind it, else the CPU.

    onnxruntime names the CUDA provider as available on machines without a GPU, and prints errors when it is asked for
    it there, so torch is asked first; the driver, if torch was not imported.

    Args:
        tf32: Whether CUDA may compute float32 products in TF32, which costs three decimal digits. In onnxruntime the
            option is more than its name says: without it, float16 convolutions run outside of the tensor cores too
            (measured: 1.9 against 9.6 ms), so `OnnxPredictor` leaves it on for files in 16 bit.

    Returns:
        Providers as ``onnxruntime.InferenceSession`` takes them.
    """
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
    """Return the name of a provider, given with or without options.

    Args:
        provider: As ``onnxruntime.InferenceSession`` takes it.

    Returns:
        Its name.

    Example:
        >>> provider_name(("CUDAExecutionProvider", {"use_tf32": 0}))
        'CUDAExecutionProvider'
    """
    return provider if isinstance(provider, str) else str(provider[0]) if provider else ""


def checked_providers(
    providers: Sequence[Provider] | None,
    provider_options: Sequence[Mapping[str, Any]] | None = None,
    *,
    tf32: bool = False,
) -> dict[str, dict[str, str]]:
    """Check a list of providers, given in either of onnxruntime's two ways, and return options as text by name.

    Args:
        providers: The list; ``None`` is CUDA alone where it works, else the CPU. Nobody asked for a part of the file to
            run on the CPU behind CUDA.
        provider_options: One mapping for each of them, where they are names alone.
        tf32: As `default_providers`.

    Returns:
        Options by name.

    Raises:
        ProviderError: If one is not installed, or the list is not as onnxruntime takes it.
    """
    if providers is None:
        providers = [provider_name(p) if provider_options else p for p in default_providers(tf32=tf32)[:1]]
    if isinstance(providers, str):
        raise ProviderError(f"providers={providers!r} is text. Give a list: providers=[{providers!r}].")
    if not providers:
        raise ProviderError("providers=[] names no execution provider. Give providers=None for the default ones.")
    if provider_options is not None:
        if len(provider_options) != len(providers) or not all(isinstance(name, str) for name in providers):
            raise ProviderError(
                f"provider_options has {len(provider_options)} entries for {len(providers)} providers. Give one "
                "mapping for each, with providers as names alone, or options in providers: [(name, {option: value})]."
            )
        providers = [(provider_name(name), options) for name, options in zip(providers, provider_options, strict=True)]
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
