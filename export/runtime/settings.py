"""What `tune` may set, and how it reaches onnxruntime."""

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import onnxruntime

from lit_gelu.errors import ModelFileError

Settings = Mapping[str, Any]
Check = Callable[[Any], bool]

LEVELS = {
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "disabled": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}


def _number(least: int, most: int) -> Check:
    return lambda value: type(value) is int and least <= value <= most


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, (list, tuple)) and all(map(check, value))


_SWITCH = _number(0, 1)
OF_PROVIDER: Mapping[str, Check] = {
    "prefer_nhwc": _SWITCH,
    "cudnn_conv_algo_search": lambda value: value in ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "fuse_conv_bias": _SWITCH,
    "use_tf32": _SWITCH,
    "arena_extend_strategy": lambda value: value in ("kNextPowerOfTwo", "kSameAsRequested"),
}
ACCEPTED: Mapping[str, Check] = {
    **OF_PROVIDER,
    "intra_op_num_threads": _number(0, 4096),  # more take minutes to start, or all of the memory
    "graph_optimization_level": lambda value: isinstance(value, str) and value in LEVELS,
    "enable_mem_pattern": lambda value: isinstance(value, bool),
    "allow_spinning": lambda value: isinstance(value, bool),
    "disabled_optimizers": _list_of(lambda name: isinstance(name, str)),
    "batch_buckets": _list_of(_number(1, 2**31 - 1)),
}


def require_settings(settings: Settings, source: str) -> None:
    """Refuse settings that `tune` does not write: a file from elsewhere must not set paths or streams."""
    for name, value in settings.items():
        if name not in ACCEPTED or not ACCEPTED[name](value):
            raise ModelFileError(
                f"{source} holds {reprlib.repr(name)}: {reprlib.repr(value)}, which lit-gelu does not write. Delete "
                f"it, or run tune() again. Known: {', '.join(sorted(ACCEPTED))}."
            )


def session_options(settings: Settings) -> onnxruntime.SessionOptions:
    """Return session options with those of the settings that a session has."""
    options = onnxruntime.SessionOptions()
    for name in ("intra_op_num_threads", "enable_mem_pattern"):
        if name in settings:
            setattr(options, name, settings[name])
    if "graph_optimization_level" in settings:
        options.graph_optimization_level = LEVELS[settings["graph_optimization_level"]]
    if "allow_spinning" in settings:
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(settings["allow_spinning"])))
    return options


def provider_options(settings: Settings) -> dict[str, str]:
    """Return those of the settings that a provider has, as text."""
    return {name: str(value) for name, value in settings.items() if name in OF_PROVIDER}
