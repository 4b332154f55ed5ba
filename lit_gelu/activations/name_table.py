"""The rows of a registry by name and alias, in layers: a scope lays a new layer over what was there."""

import threading
from contextvars import ContextVar
from typing import Any

from torch import nn

from lit_gelu.activations.entry import ActivationEntry
from lit_gelu.activations.errors import DuplicateActivationError

Rows = dict[str, ActivationEntry]


class Layer:
    """Rows that a scope lays over those below.

    Args:
        table: The table that they belong to.

    Attributes:
        rows: The rows, by name and alias.
        ended: Whether the scope has ended; it may end in another context than it began in.
    """

    def __init__(self, table: "NameTable") -> None:
        self.table = table
        self.rows: Rows = {}
        self.ended = False


_scopes: ContextVar[tuple[Layer, ...]] = ContextVar("layers of the scopes that are open", default=())


class NameTable:
    """Rows by name and alias; the uppermost layer that has a name wins. Threads may use it together.

    The lowest layer is everybody's. Those above belong to the context (a thread, a task of asyncio) in which they were
    laid: other threads neither see them nor add to them.

    Example:
        >>> table = NameTable()
        >>> table.add(ActivationEntry("softsign", nn.Softsign, aliases=("sign",)), ["softsign", "sign"])
        >>> table.find("sign").name
        'softsign'
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._base: Rows = {}
        # What `rows` and `of_type` return, by the layers that are seen, until something changes.
        self._merged: dict[tuple[int, ...], Rows] = {}
        self._by_type: dict[tuple[int, ...], dict[type[nn.Module], ActivationEntry]] = {}

    def add(self, entry: ActivationEntry, names: list[str], *, override: bool = False) -> None:
        """Add one row to the uppermost layer.

        Args:
            entry: The row.
            names: Its name and its aliases, in lower case.
            override: Whether it may take the place of what has one of these names.

        Raises:
            DuplicateActivationError: If a name is taken and ``override`` is false.
        """
        with self._lock:
            for name in names:
                taken = self.find(name)
                if taken is not None and not override:
                    raise DuplicateActivationError(
                        f"{name!r} is registered already, by {taken.registered_by or 'an unknown caller'}. "
                        "Choose another name, or pass override=True to take its place."
                    )
            self._seen()[-1].update(dict.fromkeys(names, entry))
            self._forget()

    def find(self, name: str) -> ActivationEntry | None:
        """Return the row of a name; an alias stands for whatever has the canonical name now.

        Args:
            name: In lower case.

        Returns:
            The row, ``None`` if the name is free.
        """
        with self._lock:
            found = next((rows[name] for rows in reversed(self._seen()) if name in rows), None)
        return found if found is None or found.name == name else self.find(found.name)

    def rows(self) -> Rows:
        """Return every name and alias with its row.

        Returns:
            A mapping that the caller must not change.
        """
        seen = self._seen()
        key = tuple(map(id, seen))
        merged = self._merged.get(key)
        if merged is None:
            with self._lock:
                found = {name: self.find(name) for rows in seen for name in rows}
                merged = self._merged[key] = {name: entry for name, entry in found.items() if entry is not None}
        return merged

    def of_type(self, cls: type[nn.Module]) -> ActivationEntry | None:
        """Return the row whose modules are of a class; of several, the one registered last.

        Args:
            cls: The class itself; a subclass may compute something else.

        Returns:
            The row, ``None`` if there is none.
        """
        key = tuple(map(id, self._seen()))
        by_type = self._by_type.get(key)
        if by_type is None:
            with self._lock:
                by_type = {form.type: entry for entry in self.rows().values() for form in entry.modules}
                self._by_type[key] = by_type
        return by_type.get(cls)

    def push(self) -> Layer:
        """Lay a new layer on top, for this context.

        Returns:
            The layer, to give to `drop`.
        """
        layer = Layer(self)
        with self._lock:
            self._forget()  # the layer may have the place in memory of one that is gone
        _scopes.set((*_open_scopes(), layer))
        return layer

    def drop(self, layer: Layer) -> None:
        """Take a layer away, with what was added to it.

        Args:
            layer: What `push` returned.
        """
        layer.ended = True
        _scopes.set(_open_scopes())
        with self._lock:
            self._forget()

    def _seen(self) -> list[Rows]:
        """Return the layers that this context sees, the lowest first."""
        return [self._base, *(layer.rows for layer in _scopes.get() if layer.table is self and not layer.ended)]

    def _forget(self) -> None:
        self._merged, self._by_type = {}, {}

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {"layers": [dict(rows) for rows in self._seen()]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]  # a lock cannot be pickled, so start anew
        for rows in state["layers"]:  # a copy has no scope to end
            self._base.update(rows)


def _open_scopes() -> tuple[Layer, ...]:
    """Return the layers of this context, without those that ended in another."""
    return tuple(layer for layer in _scopes.get() if not layer.ended)
