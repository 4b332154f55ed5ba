"""The table of all rows of a registry by name and alias, in the layers that scopes lay over it."""

import threading
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from torch import nn

from lit_gelu.activations.errors import DuplicateActivationError, UnknownArgumentsError
from lit_gelu.activations.naming.entry import ActivationEntry, Resolved
from lit_gelu.activations.naming.plugins import PluginLoader
from lit_gelu.activations.naming.standalone import standalone

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
        # Presets whose base has lost its name.
        self._alone = {id(row): standalone(row) for row in rows.values() if _has_lost_its_base(row, rows)}
        self.rows = {name: self._alone.get(id(row), row) for name, row in rows.items()}  # by name and alias
        # What texts without further arguments stand for, as far as they were asked for.
        self.resolved: dict[str, Resolved] = {}
        # Every row once, in the order of registration.
        self.entries = list({id(entry): entry for entry in self.rows.values()}.values())
        # By the class of its modules; a subclass may compute something else and is not there. Several presets may share
        # a class, which says nothing of its arguments.
        whole = [entry for entry in rows.values() if id(entry) not in self._alone]
        self.by_type = {form.type: entry for entry in whole for form in entry.modules}
        # By the identity of a function, with the arguments that it stands for; the row registered first.
        self.by_function = {
            id(function): (entry, dict(arguments))
            for entry in reversed(self.entries)
            for function, arguments in reversed(entry.functions)
        }

    def of_class(self, cls: type) -> ActivationEntry | None:
        """Return the row of a module class."""
        return self.by_type.get(cls)

    def of_module(self, module: nn.Module) -> ActivationEntry | None:
        """Return the row of a module: that of its class, or a preset without its base that has its arguments."""
        found = self.of_class(type(module))
        if found is not None or not self._alone:
            return found
        return next((row for row in self._alone.values() if _is_of(row, module)), None)


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

    def given(self) -> list[ActivationEntry]:
        """Return every row that this context sees once, as it was added."""
        with self._lock:
            return list({id(entry): entry for entry in _merged(self._layers()).values()}.values())

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


def _has_lost_its_base(entry: ActivationEntry, rows: Rows) -> bool:
    """Say whether an entry is a preset of a row whose name stands for another row, or for none."""
    # By equality: a pickle of one row alone holds a copy of its base.
    return entry.preset is not None and entry.base is not None and rows.get(entry.preset.name) != entry.base


def _is_of(entry: ActivationEntry, module: nn.Module) -> bool:
    """Say whether a module has the class and the arguments of a row that shares its class with others."""
    form = entry.form_of(module)
    try:
        return form is not None and form.read(module) is not None
    except UnknownArgumentsError:
        return False
