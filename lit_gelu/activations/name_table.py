"""The rows of a registry by name and alias, in layers: a scope lays a new layer over what was there."""

import threading
from typing import Any

from torch import nn

from lit_gelu.activations.entry import ActivationEntry
from lit_gelu.activations.errors import DuplicateActivationError

Layer = dict[str, ActivationEntry]


class NameTable:
    """Rows by name and alias; the uppermost layer that has a name wins. Threads may use it together.

    Example:
        >>> table = NameTable()
        >>> table.add(ActivationEntry("softsign", nn.Softsign, aliases=("sign",)), ["softsign", "sign"])
        >>> table.find("sign").name
        'softsign'
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._layers: list[Layer] = [{}]
        self._merged: Layer | None = None  # what `rows` returns, until something changes
        self._by_type: dict[type[nn.Module], ActivationEntry] | None = None

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
            self._layers[-1].update(dict.fromkeys(names, entry))
            self._forget()

    def find(self, name: str) -> ActivationEntry | None:
        """Return the row of a name; an alias stands for whatever has the canonical name now.

        Args:
            name: In lower case.

        Returns:
            The row, ``None`` if the name is free.
        """
        with self._lock:
            found = next((layer[name] for layer in reversed(self._layers) if name in layer), None)
        return found if found is None or found.name == name else self.find(found.name)

    def rows(self) -> Layer:
        """Return every name and alias with its row.

        Returns:
            A mapping that the caller must not change.
        """
        merged = self._merged
        if merged is None:
            with self._lock:
                found = {name: self.find(name) for layer in self._layers for name in layer}
                merged = self._merged = {name: entry for name, entry in found.items() if entry is not None}
        return merged

    def of_type(self, cls: type[nn.Module]) -> ActivationEntry | None:
        """Return the row whose modules are of a class; of several, the one registered last.

        Args:
            cls: The class itself; a subclass may compute something else.

        Returns:
            The row, ``None`` if there is none.
        """
        by_type = self._by_type
        if by_type is None:
            with self._lock:
                by_type = {form.type: entry for entry in self.rows().values() for form in entry.modules}
                self._by_type = by_type
        return by_type.get(cls)

    def push(self) -> Layer:
        """Lay a new layer on top.

        Returns:
            The layer, to give to `drop`.
        """
        layer: Layer = {}
        with self._lock:
            self._layers.append(layer)
        return layer

    def drop(self, layer: Layer) -> None:
        """Take a layer away, with what was added to it.

        Args:
            layer: What `push` returned.
        """
        with self._lock:
            self._layers = [other for other in self._layers if other is not layer]
            self._forget()

    def _forget(self) -> None:
        self._merged = self._by_type = None

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {"layers": [dict(layer) for layer in self._layers]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]  # a lock cannot be pickled, so start anew
        self._layers = state["layers"]
