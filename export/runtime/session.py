"""Sessions of onnxruntime that run where they were asked to, or not at all."""

import logging
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from lit_gelu.cuda_versions import mismatch
from lit_gelu.export.errors import ModelFileError, ProviderError
from lit_gelu.export.runtime.captured_stdout import captured_stdout
from lit_gelu.export.runtime.model_file import SIZES, ModelFile, read_model_file
from lit_gelu.export.runtime.placement import RECORD, copied_sizes, named, placement_of, without_shape_arithmetic
from lit_gelu.export.runtime.providers import (
    CPU,
    CUDA,
    ON_CUDA_DEVICES,
    TENSORRT,
    Provider,
    checked_providers,
    default_providers,
)
from lit_gelu.export.runtime.tensorrt import keep_engines, load_tensorrt

_log = logging.getLogger(__name__)
NO_CPU = "session.disable_cpu_ep_fallback"
_COPIES = "In sessions with NHWC onnxruntime runs that on the GPU, with copies to the CPU and back at every call."
EXACT_SUMS = "session.x64quantprecision"  # int8 on x86 without VNNI: 32-bit sums, at half the speed

_FILE_ERROR_NAMES = "InvalidProtobuf InvalidGraph NoSuchFile NotImplemented NoModel InvalidArgument"
_FILE_ERRORS: tuple[type[Exception], ...] = tuple(getattr(ort_errors, name) for name in _FILE_ERROR_NAMES.split())
_PROVIDER_ERRORS = (ort_errors.Fail, ort_errors.EPFail, ort_errors.RuntimeException, RuntimeError, ValueError)
_Options = Mapping[str, Mapping[str, str]]  # by provider


class CpuFallbackWarning(UserWarning):
    """Part of a file runs on the CPU although another provider was asked for first, and the CPU behind it."""


def open_session(
    path: str | os.PathLike[str],
    providers: Sequence[Provider] | None = None,
    sess_options: onnxruntime.SessionOptions | None = None,
    provider_options: Sequence[Mapping[str, Any]] | None = None,
    *,
    disabled_optimizers: Sequence[str] = (),
    model: ModelFile | None = None,
) -> onnxruntime.InferenceSession:
    """Open a file with onnxruntime, on the provider that was asked for or not at all.

    onnxruntime falls back to the CPU without a word when a provider's libraries are missing, when an option is
    misspelt, or for a node that the provider has no kernel for. Here the first two are errors. So is the third, unless
    the CPU is named behind the provider: then a `CpuFallbackWarning` says which nodes run there. Nodes that compute
    sizes alone are no fallback: onnxruntime puts them on the CPU on purpose, where sizes are, and no tensor travels.

    Args:
        path: The file.
        providers: As ``onnxruntime.InferenceSession`` takes them; by default CUDA alone where it works, else the CPU.
        sess_options: As ``onnxruntime.InferenceSession`` takes them.
        provider_options: As ``onnxruntime.InferenceSession`` takes them.
        disabled_optimizers: Names of onnxruntime's graph transformers that shall not run.
        model: What the file says, if it was read before.

    Returns:
        The session; it has recorded which provider runs which node.

    Raises:
        ModelFileError: If the file is missing, damaged, or no model that onnxruntime can run.
        ProviderError: If a provider does not exist here, has no such option, or did not take the whole file.
    """
    model = read_model_file(path) if model is None else model
    if providers is None:
        # The CPU behind CUDA is left out: nobody asked for a part of the file to run there.
        checked = checked_providers(default_providers(tf32=model.sixteen_bit)[:1], provider_options)
    else:
        checked = checked_providers(list(providers), provider_options)
    first = next(iter(checked))
    _settle_layout(model, checked)
    if first != CPU:
        _load_libraries(first)
    if TENSORRT in checked:
        keep_engines(model, checked[TENSORRT], load_tensorrt())
    session = _open(model, checked, sess_options, disabled_optimizers)
    if session.get_providers()[0] != first:
        raise ProviderError(_fell_back(first, session.get_providers()[0]))
    if first != CPU:
        _judge_cpu_nodes(session, model, checked)
    return session


def _has_nhwc(checked: _Options) -> bool:
    return checked.get(CUDA, {}).get("prefer_nhwc", "0") not in ("0", "False", "false")


def _settle_layout(model: ModelFile, checked: Mapping[str, dict[str, str]]) -> None:
    """Grant a file's wish for NHWC where it costs no copies; refuse NHWC where onnxruntime has no kernels for it."""
    if model.grants_nhwc and CUDA in checked:
        checked[CUDA].setdefault("prefer_nhwc", "1")
    elif model.wants_nhwc and CUDA in checked and "prefer_nhwc" not in checked[CUDA]:
        _log.warning("%s is opened without prefer_nhwc, its wish: it computes sizes. %s", model.path, _COPIES)
    if _has_nhwc(checked) and model.bfloat16 and {"Conv", "ConvTranspose"} & model.operators.keys():
        raise ProviderError(
            f"prefer_nhwc=1: onnxruntime's CUDA provider has no bfloat16 convolutions in NHWC, and {str(model.path)!r} "
            "holds some. Leave the option out, or export with dtype='fp16'."
        )


def _load_libraries(provider: str) -> None:
    """Load cuBLAS, cuDNN and cuRAND from their wheels: torch no longer loads all of them."""
    torch = sys.modules.get("torch")
    if torch is not None and (wrong := mismatch(torch.version.cuda, onnxruntime.cuda_version)):
        raise ProviderError(f"{provider} cannot run beside torch here: {wrong[0]}. To mend it, {wrong[1]}.")
    with captured_stdout() as said:  # it prints what it cannot load
        onnxruntime.preload_dlls()
    for line in said.getvalue().splitlines():
        _log.warning("onnxruntime.preload_dlls: %s", line)


def _open(
    model: ModelFile,
    checked: _Options,
    sess_options: onnxruntime.SessionOptions | None,
    disabled_optimizers: Sequence[str],
) -> onnxruntime.InferenceSession:
    """Open a session, its errors as the project's own."""
    options = onnxruntime.SessionOptions() if sess_options is None else sess_options
    for key in (RECORD, EXACT_SUMS) if model.saturates else (RECORD,):
        if config_entry(options, key) is None:
            options.add_session_config_entry(key, "1")
    try:
        return onnxruntime.InferenceSession(
            os.fspath(model.path),
            options,
            providers=[(name, _without_first_device(name, given)) for name, given in checked.items()],
            disabled_optimizers=[*disabled_optimizers, *_crashing(model)],
            enable_fallback=0,  # else a failure prints a banner and the session runs on the CPU
        )
    except _FILE_ERRORS as error:
        without_kernel = isinstance(error, ort_errors.NotImplemented) and model.bfloat16 and next(iter(checked)) == CPU
        raise ModelFileError((_for_gpus if without_kernel else _not_loaded)(model, error)) from error
    except _PROVIDER_ERRORS as error:
        _raise_for_provider(error, model, checked, disabled_optimizers)


def _crashing(model: ModelFile) -> list[str]:
    """Return onnxruntime's optimisations that end the process on a file like this one."""
    # On x86-64 NchwcTransformer follows a null pointer where a Transpose stands in front of a Cast from 16 bits, which
    # onnxruntime puts ahead of what its CPU has no kernel for: a transformer in float16 (onnxruntime's issue 28392, in
    # 1.24 to 1.31). On a GPU it does nothing.
    return ["NchwcTransformer"] if model.sixteen_bit and "Transpose" in model.operators else []


def _without_first_device(provider: str, options: Mapping[str, str]) -> dict[str, str]:
    """Leave out the number of the first CUDA device, which providers take by themselves."""
    # Where it is given, onnxruntime 1.31 looks for the provider among plugins on that device first, and warns that none
    # is registered, in every session.
    first = provider in ON_CUDA_DEVICES and options.get("device_id") == "0"
    return {name: value for name, value in options.items() if not (first and name == "device_id")}


def config_entry(options: onnxruntime.SessionOptions, key: str) -> str | None:
    """Return one configuration entry of session options; ``None`` if it is not set."""
    try:
        return str(options.get_session_config_entry(key))
    except RuntimeError:
        return None


def _not_loaded(model: ModelFile, error: Exception) -> str:
    versions = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in model.opsets.items())
    return (
        f"onnxruntime {onnxruntime.__version__} cannot load {str(model.path)!r} (operator sets: {versions}): it is "
        "damaged, needs operators or an operator set that onnxruntime does not know (then export it with a lower "
        "opset=), or one of onnxruntime's own optimisations fails (then a lower graph_optimization_level in "
        f"sess_options helps): {error}"
    )


def _for_gpus(model: ModelFile, error: Exception) -> str:
    return (
        f"onnxruntime {onnxruntime.__version__}'s CPU provider has no bfloat16 kernel for a node of "
        f"{str(model.path)!r}: this file runs on a GPU only (providers=['{CUDA}']). Export with dtype='fp16' or 'fp32' "
        f"for the CPU: {error}"
    )


def _raise_for_provider(
    error: Exception,
    model: ModelFile,
    checked: _Options,
    disabled_optimizers: Sequence[str],
) -> NoReturn:
    """Tell a file that cannot be loaded from a provider that is missing or has no kernel for some nodes."""
    first = next(iter(checked))
    if first == CPU or "Load model from" in str(error) or "External data" in str(error):
        raise ModelFileError(_not_loaded(model, error)) from error
    if "assigned to the default CPU EP" in str(error):
        # The caller's own option; once more without it: who is missing, the provider or some of its kernels?
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        probe = _open(model, {**checked, CPU: {}}, options, disabled_optimizers)
        if probe.get_providers()[0] != first:
            raise ProviderError(_fell_back(first, probe.get_providers()[0])) from error
        nodes = placement_of(probe).outside(*checked)
        raise ProviderError(
            f"{NO_CPU}=1 is set, and onnxruntime runs {len(nodes)} nodes of {str(model.path)!r} on the CPU: "
            f"{named(nodes)}. Leave the option out: an OnnxPredictor refuses fallbacks, and allows nodes that compute "
            "sizes."
        ) from error
    names = ", ".join(checked)
    why = f" {_COPIES} CUDA graphs allow none." if _has_nhwc(checked) and SIZES & model.operators.keys() else ""
    raise ProviderError(
        f"onnxruntime cannot open {str(model.path)!r} on {names}: {error}.{why} `lit-gelu doctor` looks for what is "
        "missing."
    ) from error


def _fell_back(wanted: str, got: str) -> str:
    return (
        f"{wanted} was asked for, but onnxruntime fell back to {got}: the provider's libraries cannot be loaded, there "
        "is no device, or the value of one of its options is wrong. `lit-gelu doctor` says which and how to mend it; "
        f"or pass providers=['{CPU}']."
    )


def _judge_cpu_nodes(session: onnxruntime.InferenceSession, model: ModelFile, checked: _Options) -> None:
    """Refuse what waits for the CPU behind the provider that was asked for, or say so if the CPU was named too."""
    placement, first, where = placement_of(session), next(iter(checked)), repr(str(model.path))
    if nodes := without_shape_arithmetic(model.path, (node for node in placement.nodes if node.provider == CPU)):
        what = (
            f"{len(nodes)} of {len(placement.nodes)} nodes of {where} run on the CPU, not on {first}: {named(nodes)}. "
            f"{first} has no kernel for them, or they make data out of sizes; their tensors travel between both at "
            "every call."
        )
        remedy = "Export the file for this provider (target=, opset=)"
    elif nodes := copied_sizes(model, placement) if _has_nhwc(checked) else ():
        what = f"prefer_nhwc=1: {where} computes sizes: {named(nodes)}. {_COPIES}"
        remedy = "Leave the option out, export with fewer open sizes"
    else:
        return
    if CPU not in checked:
        raise ProviderError(f"{what} {remedy}, or accept it: providers=['{first}', '{CPU}'].")
    warnings.warn(what, CpuFallbackWarning, stacklevel=4)
