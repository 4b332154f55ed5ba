"""Execution providers: their names, the options that each takes, and what is wrong with a list of them."""

import ctypes
import difflib
import mmap
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime

from lit_gelu.export.errors import ProviderError

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
ON_CUDA_DEVICES = frozenset({CUDA, TENSORRT})  # their tensors are torch's CUDA tensors

Provider = str | tuple[str, Mapping[str, Any]]

# The names that the provider libraries of onnxruntime 1.31.1 hold as text (a test compares them with the installed
# library). A name that a library does not know makes onnxruntime drop the whole provider without an error.
_CUDA_OPTIONS = """
    arena_extend_strategy cudnn_conv1d_pad_to_nc1d cudnn_conv_algo_search cudnn_conv_use_max_workspace device_id
    do_copy_in_default_stream enable_cuda_graph enable_cudnn enable_skip_layer_norm_strict_mode fuse_conv_bias
    gpu_external_alloc gpu_external_empty_cache gpu_external_free gpu_mem_limit has_user_compute_stream prefer_nhwc
    sdpa_kernel tunable_op_enable tunable_op_max_tuning_duration_ms tunable_op_tuning_enable use_ep_level_unified_stream
    use_tf32 user_compute_stream
"""
_TENSORRT_OPTIONS = """
    device_id has_user_compute_stream trt_auxiliary_streams trt_bf16_enable trt_build_heuristics_enable
    trt_builder_optimization_level trt_context_memory_sharing_enable trt_cuda_graph_enable trt_detailed_build_log
    trt_dla_core trt_dla_enable trt_dump_ep_context_model trt_dump_subgraphs trt_engine_cache_enable
    trt_engine_cache_path trt_engine_cache_prefix trt_engine_decryption_enable trt_engine_decryption_lib_path
    trt_engine_hw_compatible trt_ep_context_embed_mode trt_ep_context_file_path trt_extra_plugin_lib_paths
    trt_force_sequential_engine_build trt_force_timing_cache trt_fp16_enable trt_int8_calibration_table_name
    trt_int8_enable trt_int8_use_native_calibration_table trt_layer_norm_fp32_fallback trt_load_user_initializer
    trt_max_partition_iterations trt_max_workspace_size trt_min_subgraph_size trt_onnx_model_folder_path
    trt_op_types_to_exclude trt_preview_features trt_profile_max_shapes trt_profile_min_shapes trt_profile_opt_shapes
    trt_sparsity_enable trt_tactic_sources trt_timing_cache_enable trt_timing_cache_path
    trt_weight_stripped_engine_enable user_compute_stream
"""
OPTION_NAMES: Mapping[str, frozenset[str]] = {
    CPU: frozenset(),
    CUDA: frozenset(_CUDA_OPTIONS.split()),
    TENSORRT: frozenset(_TENSORRT_OPTIONS.split()),
}
_LIBRARIES = {CUDA: "onnxruntime_providers_cuda", TENSORRT: "onnxruntime_providers_tensorrt"}


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
        found = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
        return bool(found) and count.value > 0
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
    providers: Sequence[Provider], provider_options: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, dict[str, str]]:
    """Check a list of providers, given in either of onnxruntime's two ways, and return options as text by name."""
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
    checked: dict[str, dict[str, str]] = {}
    for provider in providers:
        name = _existing(provider_name(provider))
        if name in checked:
            raise ProviderError(f"{name} is given twice. Give each provider once.")
        options = {} if isinstance(provider, str) else provider[1] if len(provider) > 1 else {}
        checked[name] = {str(key): str(value) for key, value in options.items()}
        _require_options(name, checked[name])
    return checked


def _existing(name: str) -> str:
    """Return a provider's name if this installation has it."""
    available = onnxruntime.get_available_providers()
    if name in available:
        return name
    raise ProviderError(
        f"Unknown execution provider {name!r}.{_hint(name, available)} In this installation: "
        f"{', '.join(map(repr, available))}."
    )


def _require_options(provider: str, given: Iterable[str]) -> None:
    """Refuse an option that the provider does not have."""
    known = OPTION_NAMES.get(provider)
    if known is None:
        return
    for name in given:
        if name in known or _library_holds(provider, name):
            continue
        if not known:
            raise ProviderError(
                f"{provider} takes no options, and onnxruntime ignores {name!r}. What it can do is set in sess_options."
            )
        raise ProviderError(
            f"{provider} has no option {name!r}.{_hint(name, known)} onnxruntime would drop the provider for it. "
            f"Accepted: {', '.join(sorted(known))}."
        )


def _hint(given: str, known: Iterable[str]) -> str:
    """Return the nearest known name as a question, or nothing."""
    inside = [name for name in known if given and given.lower() in name.lower()]
    near = inside or difflib.get_close_matches(given, sorted(known), n=1, cutoff=0.4)
    return f" Did you mean {near[0]!r}?" if near else ""


def _library_holds(provider: str, name: str) -> bool:
    """Return whether the installed provider library, which may be newer than the list, holds a name as a whole text."""
    if provider not in _LIBRARIES or not (name.isidentifier() and "_" in name):
        return False
    folder = Path(onnxruntime.__file__).parent / "capi"
    for path in folder.glob(f"*{_LIBRARIES[provider]}.*"):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(b"\0" + name.encode() + b"\0") >= 0:
                return True
    return False
