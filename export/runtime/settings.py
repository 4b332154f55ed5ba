"""What `tune` may set, and how it reaches onnxruntime."""

import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnxruntime

from lit_gelu.export.errors import ModelFileError, ProviderError
from lit_gelu.export.runtime.session import config_entry

Settings = Mapping[str, Any]
Buckets = Mapping[str, Sequence[int]]  # ascending, by the file's name of the size
BATCH = ""  # stands for the batch, whatever its name

LEVELS = {
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "disabled": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_MOST_THREADS = 4096  # more take minutes to start, or all of the memory
_LARGEST_BATCH = 2**31 - 1

Check = Callable[[object], bool]


def _is_number(value: object, least: int, most: int) -> bool:
    """Return whether a value is a whole number between two."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_switch(value: object) -> bool:
    """Return whether a value is 0 or 1."""
    return _is_number(value, 0, 1)


def _is_flag(value: object) -> bool:
    """Return whether a value is true or false."""
    return isinstance(value, bool)


def _is_list(value: object, fits: Check) -> bool:
    """Return whether a value is a list of values that fit."""
    return isinstance(value, (list, tuple)) and all(map(fits, value))


OF_PROVIDER: Mapping[str, Check] = {
    "prefer_nhwc": _is_switch,
    "cudnn_conv_algo_search": lambda value: value in ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "fuse_conv_bias": _is_switch,
    "use_tf32": _is_switch,
    "arena_extend_strategy": lambda value: value in ("kNextPowerOfTwo", "kSameAsRequested"),
}
_OF_SESSION: Mapping[str, Check] = {
    "intra_op_num_threads": lambda value: _is_number(value, 0, _MOST_THREADS),
    "graph_optimization_level": lambda value: isinstance(value, str) and value in LEVELS,
    "enable_mem_pattern": _is_flag,
    "allow_spinning": _is_flag,
}
_OTHERS: Mapping[str, Check] = {
    "disabled_optimizers": lambda value: _is_list(value, lambda name: isinstance(name, str)),
    "batch_buckets": lambda value: _is_list(value, lambda size: _is_number(size, 1, _LARGEST_BATCH)),
}
ACCEPTED = {**OF_PROVIDER, **_OF_SESSION, **_OTHERS}


def require_settings(settings: Settings, source: str) -> None:
    """Refuse settings that `tune` does not write: a file from elsewhere must not set paths or streams."""
    for name, value in settings.items():
        if name not in ACCEPTED or not ACCEPTED[name](value):
            raise ModelFileError(
                f"{source} holds {reprlib.repr(name)}: {reprlib.repr(value)}, which lit-gelu does not write. Delete "
                f"it, or run tune() again. Known: {', '.join(sorted(ACCEPTED))}."
            )


def checked_buckets(buckets: Sequence[int], of: str = "batch_buckets") -> tuple[int, ...]:
    """Return sizes in ascending order, each once; `ProviderError` if one is no positive number."""
    wrong = [size for size in buckets if not isinstance(size, int) or isinstance(size, bool) or size < 1]
    if wrong:
        raise ProviderError(f"{of}={list(buckets)!r}: {wrong} are no sizes. Give positive whole numbers.")
    return tuple(sorted(set(buckets)))


def named_buckets(batch: Sequence[int], named: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Return the sizes of buckets by the file's names; those of a batch of any name as `BATCH`."""
    if batch and named:
        raise ProviderError("batch_buckets= is a short form of buckets=. Give one of them.")
    if not isinstance(named, Mapping) or not all(named.values()):
        raise ProviderError(f"buckets={named!r} is not accepted. Give sizes by name, such as {{'batch': (1, 8)}}.")
    by_name = {name: checked_buckets(sizes, f"buckets of {name!r}") for name, sizes in named.items()}
    return by_name or ({BATCH: checked_buckets(batch)} if batch else {})


def session_options(settings: Settings) -> onnxruntime.SessionOptions:
    """Return session options with those of the settings that a session has."""
    options = onnxruntime.SessionOptions()
    if "intra_op_num_threads" in settings:
        options.intra_op_num_threads = settings["intra_op_num_threads"]
    if "graph_optimization_level" in settings:
        options.graph_optimization_level = LEVELS[settings["graph_optimization_level"]]
    if "enable_mem_pattern" in settings:
        options.enable_mem_pattern = settings["enable_mem_pattern"]
    if "allow_spinning" in settings:
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(settings["allow_spinning"])))
    return options


def provider_options(settings: Settings) -> dict[str, str]:
    """Return those of the settings that a provider has, as text."""
    return {name: str(value) for name, value in settings.items() if name in OF_PROVIDER}


# What SessionOptions can be asked for; enough to open the same session in another process.
_ATTRIBUTES = (
    "enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "execution_mode", "execution_order",
    "graph_optimization_level", "inter_op_num_threads", "intra_op_num_threads", "log_severity_level",
    "log_verbosity_level", "logid", "use_deterministic_compute",
)  # fmt: skip
_ENTRIES = (
    "ep.context_enable", "optimization.disable_specified_optimizers", "optimization.enable_gelu_approximation",
    "session.disable_cpu_ep_fallback", "session.disable_prepacking", "session.inter_op.allow_spinning",
    "session.intra_op.allow_spinning", "session.intra_op_thread_affinities", "session.set_denormal_as_zero",
    "session.use_device_allocator_for_initializers", "session.x64quantprecision",
)  # fmt: skip


def options_state(options: onnxruntime.SessionOptions | None) -> dict[str, Any] | None:
    """Return session options as plain data, for pickle, which onnxruntime's own objects refuse."""
    # Libraries of custom operators and initializers are not among them.
    if options is None:
        return None
    attributes = {name: getattr(options, name) for name in _ATTRIBUTES}
    plain = {name: value if isinstance(value, (bool, int, str)) else value.name for name, value in attributes.items()}
    entries = {key: value for key in _ENTRIES if (value := config_entry(options, key)) is not None}
    return {"attributes": plain, "entries": entries}


def options_from(state: Mapping[str, Any] | None) -> onnxruntime.SessionOptions | None:
    """Return session options from what `options_state` gave."""
    if state is None:
        return None
    options = onnxruntime.SessionOptions()
    for name, value in state["attributes"].items():
        kind = type(getattr(options, name))
        setattr(options, name, value if isinstance(value, kind) else getattr(kind, value))
    for key, value in state["entries"].items():
        options.add_session_config_entry(key, value)
    return options
