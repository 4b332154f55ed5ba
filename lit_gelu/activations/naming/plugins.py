"""Activations of installed distributions, found through the entry-point group ``lit_gelu.activations``.

A distribution declares ``name = "package.module:object"`` in that group. If the object is a class or a function it is
registered under ``name``; if it is a module, importing it is enough: its own decorators register what it has.
"""

import inspect
import os
import threading
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from importlib.metadata import EntryPoint, entry_points
from typing import Any

GROUP = "lit_gelu.activations"
SWITCH = "LIT_GELU_PLUGINS"

_loading: ContextVar[str | None] = ContextVar("plugin that is being loaded", default=None)


Register = Callable[[str], Callable[[Any], Any]]
"""`ActivationRegistry.register` of the registry that plugins are for."""


def current_plugin() -> str | None:
    """Return the description of the plugin whose code is running because it is being loaded, ``None`` outside."""
    return _loading.get()


class PluginLoader:
    """Loads every plugin once, at the first look-up; a plugin that fails gives a warning and the others still load."""

    # The environment variable ``LIT_GELU_PLUGINS=0`` turns discovery off.

    def __init__(self, *, enabled: bool) -> None:
        # A lock of its own: a plugin's import may wait for another thread that registers something.
        self._lock = threading.RLock()
        self.pending = enabled  # whether `load_into` is still to be called, so that a look-up asks no more than this

    def load_into(self, register: Register) -> None:
        """Load the plugins that are installed into a registry, if that was not done yet."""
        with self._lock:
            if not self.pending:  # another thread was first
                return
            self.pending = False  # first: plugins look names up while they load
            if os.environ.get(SWITCH, "1").lower() in {"0", "false", "off", "no"}:
                return
            for entry_point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
                _load(entry_point, register)

    def __getstate__(self) -> dict[str, Any]:
        return {"_pending": self.pending}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(enabled=state["_pending"])  # type: ignore[misc]  # a lock cannot be pickled, so start anew


def _load(entry_point: EntryPoint, register: Register) -> None:
    """Load one plugin, or warn that it cannot be loaded."""
    distribution = f" {entry_point.dist.name} {entry_point.dist.version}" if entry_point.dist else ""
    description = f"plugin{distribution} ({entry_point.value})"
    token = _loading.set(description)
    try:
        loaded = entry_point.load()
        if not inspect.ismodule(loaded):
            register(entry_point.name)(loaded)
    except Exception as error:  # noqa: BLE001 - whatever somebody else's package raises must not take ours down
        warnings.warn(
            f"The activation {entry_point.name!r} of {description} could not be loaded: {type(error).__name__}: "
            f"{error}. The others work. Upgrade or uninstall that distribution, or set {SWITCH}=0 to load no plugins.",
            stacklevel=2,
        )
    finally:
        _loading.reset(token)
