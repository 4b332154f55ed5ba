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

    It also asks C++ for operators that are made of others, once for each of two times thirty namespaces: once an export
    is enough.
    """
    with _LOCK, contextlib.ExitStack() as stack:
        for owner, name, kept in (*_kept(), *_asked_once()):
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


def _asked_once() -> Iterator[tuple[Any, str, Any]]:
    """Yield what asks for composite operators; between exports others may be registered, so its answer is not kept."""
    utils = _module("torch._export.utils")
    ask = getattr(utils, "_materialize_cpp_cia_ops", None)
    if ask:
        yield utils, "_materialize_cpp_cia_ops", functools.cache(ask)


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
