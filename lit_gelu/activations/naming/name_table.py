"""The table of all rows of a registry by name and alias, and what is asked of a registry.

Rows also come from installed distributions, through the entry-point group ``lit_gelu.activations``. A distribution
declares ``name = "package.module:object"`` in that group. If the object is a class or a function it is registered under
``name``; if it is a module, importing it is enough: its own decorators register what it has.
"""

import inspect
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

from torch import nn

from lit_gelu.activations.errors import DuplicateActivationError
from lit_gelu.activations.naming.entry import ActivationEntry, Resolved
from lit_gelu.activations.naming.spec import ActivationSpec


class StoredNames(Protocol):
    """Looks up what a file says; see `StoredActivations`."""

    def create(self, spec: object) -> nn.Module:
        """Build a new module."""

    def resolve(self, spec: object) -> ActivationSpec:
        """Return a spec in canonical form."""


class Names(Protocol):
    """Looks activations up; see the methods of `ActivationRegistry`."""

    def create(self, spec: Any, **kwargs: Any) -> nn.Module:
        """Build a new module."""

    def resolve(self, spec: Any, **kwargs: Any) -> ActivationSpec:
        """Return a spec in canonical form."""

    def spec_of(self, module: nn.Module) -> ActivationSpec:
        """Return the canonical spec of a module."""

    def named(self, spec: ActivationSpec, kwargs: Mapping[str, Any]) -> Resolved:
        """Resolve the spec of a registered name, with further arguments."""

    def named_function(self, function: object, kwargs: Mapping[str, Any]) -> Resolved | None:
        """Resolve a function that a row is registered with, ``None`` if there is none."""

    def entry(self, name: str) -> ActivationEntry:
        """Return the row of a name or alias."""

    def entries(self) -> list[ActivationEntry]:
        """Return every row once."""

    def entry_of(self, module: nn.Module) -> ActivationEntry | None:
        """Return the row that a module belongs to."""

    def entry_of_class(self, cls: type) -> ActivationEntry | None:
        """Return the row whose modules are of a class."""

    def add(self, entry: ActivationEntry, *, override: bool = False) -> None:
        """Add one row."""

    @property
    def stored(self) -> StoredNames:
        """The same for specs out of files."""


_default: Names | None = None


def set_default_names(names: Names) -> None:
    """Say which registry is asked where none is given."""
    global _default
    _default = names


def default_names() -> Names:
    """Return the registry that is asked where none is given.

    Returns:
        `lit_gelu.activations.registry`.

    Raises:
        RuntimeError: If that has not been made yet.

    Example:
        >>> default_names().entry("soi").name
        'zero_identity_map'
    """
    if _default is None:
        raise RuntimeError("lit_gelu.activations is not imported yet, so there is no default registry.")
    return _default


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


Rows = dict[str, ActivationEntry]


class ScopeEntries:
    """Rows by name and alias that a scope lays over those below."""

    def __init__(self, table: "NameTable") -> None:
        self.table = table
        self.rows: Rows = {}
        self.ended = False  # a scope may end in another context than it began in


_scopes: ContextVar[tuple[ScopeEntries, ...]] = ContextVar("layers of the scopes that are open", default=())


class Seen:
    """What is seen through all layers of a table, indexed by whatever it is asked by; the row registered last wins."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows  # by name and alias
        # What texts without further arguments stand for, as far as they were asked for.
        self.resolved: dict[str, Resolved] = {}
        # Every row once, in the order of registration.
        self.entries = list({id(entry): entry for entry in rows.values()}.values())
        # By the class of its modules; a subclass may compute something else and is not there.
        self.by_type = {form.type: entry for entry in rows.values() for form in entry.modules}
        # By the identity of a function, with the arguments that it stands for; the row registered first.
        self.by_function = {
            id(function): (entry, dict(arguments))
            for entry in reversed(self.entries)
            for function, arguments in reversed(entry.functions)
        }


class NameTable:
    """Rows by name and alias, in layers; the uppermost layer that has a name wins. Threads may use it together."""

    # The lowest layer is everybody's. Those above belong to the context (a thread, a task of asyncio) in which they
    # were laid: other threads neither see them nor add to them.

    def __init__(self, rows: Mapping[str, ActivationEntry] | None = None, plugins: PluginLoader | None = None) -> None:
        self._lock = threading.RLock()
        self._base: Rows = dict(rows or {})
        self._plugins = plugins
        self._seen: dict[tuple[int, ...], Seen] = {}  # by the layers, until something changes

    def add(self, entry: ActivationEntry, names: list[str], *, override: bool = False) -> None:
        """Add one row to the uppermost layer under ``names``, its name and its aliases in lower case."""
        with self._lock:
            layers = self._layers()
            rows = {} if override else _merged(layers)
            for name in names:
                if name in rows:
                    raise DuplicateActivationError(
                        f"{name!r} is registered already, by {rows[name].registered_by or 'an unknown caller'}. "
                        "Choose another name, or pass override=True to take its place."
                    )
            layers[-1].update(dict.fromkeys(names, entry))
            self._seen = {}

    def seen(self, registry: Any = None) -> Seen:
        """Return what this context sees, which the caller must not change; first load the plugins of a registry."""
        if self._plugins is not None and self._plugins.pending:
            self._plugins.load_into(registry.register)
        scopes = _scopes.get()
        key = tuple(map(id, scopes)) if scopes else ()
        seen = self._seen.get(key)
        if seen is None:
            with self._lock:
                seen = self._seen[key] = Seen(_merged(self._layers()))
        return seen

    def push(self) -> ScopeEntries:
        """Lay a new layer on top, for this context; `drop` takes it away."""
        layer = ScopeEntries(self)
        with self._lock:
            self._seen = {}  # the layer may have the place in memory of one that is gone
        _scopes.set((*_open_scopes(), layer))
        return layer

    def drop(self, layer: ScopeEntries) -> None:
        """Take a layer away, with what was added to it."""
        layer.ended = True
        _scopes.set(_open_scopes())
        with self._lock:
            self._seen = {}

    def _layers(self) -> list[Rows]:
        """Return the layers that this context sees, the lowest first."""
        return [self._base, *(layer.rows for layer in _scopes.get() if layer.table is self and not layer.ended)]

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {"layers": [dict(rows) for rows in self._layers()], "plugins": self._plugins}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(plugins=state["plugins"])  # type: ignore[misc]  # a lock cannot be pickled, so start anew
        for rows in state["layers"]:  # a copy has no scope to end
            self._base.update(rows)


def _open_scopes() -> tuple[ScopeEntries, ...]:
    """Return the layers of this context, without those that ended in another."""
    return tuple(layer for layer in _scopes.get() if not layer.ended)


def _merged(layers: list[Rows]) -> Rows:
    """Return what is seen through layers: the uppermost has its way, and an alias stands for what has its name now."""
    merged: Rows = {}
    for layer in layers:
        merged |= layer
    rows = {}
    for name, entry in merged.items():
        while merged[entry.name] is not entry:
            entry = merged[entry.name]
        rows[name] = entry
    return rows
