"""How torch writes its operators in ONNX: what an export reads of it is kept for the next one."""

import contextlib
import functools
import importlib
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_LOCK = threading.RLock()


@contextlib.contextmanager
def read_once() -> Iterator[None]:
    """Let torch's exporter read the source of its translations only once a process, not in each call.

    ``torch.onnx.export`` has some 500 of them, functions of onnxscript, and parses each anew: two thirds of the time of
    a small module's export. What it reads of a function depends on the function alone. One thread exports at a time.
    """
    with _LOCK, contextlib.ExitStack() as stack:
        for owner, name, kept in _kept():
            stack.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, kept)
        yield


@functools.cache
def _kept() -> tuple[tuple[Any, str, Any], ...]:
    """Return what reads a translation: where it stands, its name, and the same with its results kept."""
    # None of it is documented: another release of either package may not have it, and exports as it does.
    found: list[tuple[Any, str, Any]] = []
    traced = getattr(_module("onnxscript.values"), "TracedOnnxFunction", None)
    parsed = vars(traced).get("function_ir") if traced else None
    if isinstance(parsed, property) and parsed.fget:
        found.append((traced, "function_ir", property(functools.cache(parsed.fget))))
    schemas = _module("torch.onnx._internal.exporter._schemas")
    signature = getattr(schemas, "op_signature_from_function", None)
    if signature:
        found.append((schemas, "op_signature_from_function", functools.cache(signature)))
    return tuple(found)


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
