"""`Names`: the table of all rows by name and alias; from any way of naming an activation to a module, and back.

Rows also come from installed distributions, through the entry-point group ``lit_gelu.activations``. A distribution
declares ``name = "package.module:object"`` in that group. If the object is a class or a function it is registered under
``name``; if it is a module, importing it is enough: its own decorators register what it has.
"""

import copy
import difflib
import fnmatch
import functools
import inspect
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Self, TypeVar, cast

from torch import Tensor, nn

from lit_gelu.activations.naming import importing
from lit_gelu.activations.naming.construction import by_keyword, note_constructions, unfolded
from lit_gelu.activations.naming.entry import (
    ActivationEntry,
    ActivationFacts,
    FunctionActivation,
    Resolved,
    entry_for,
    opaque_spec,
    without_memory,
)
from lit_gelu.activations.naming.spec import (
    ACCEPTED,
    ActivationSpec,
    DottedPath,
    dotted_path,
    merged,
    opaque,
    read_spec,
)
from lit_gelu.errors import ArgumentError, SpecError, UnknownActivationError, message_of, shown

GROUP = "lit_gelu.activations"
SWITCH = "LIT_GELU_PLUGINS"
_MOST_TEXTS = 1024  # whose meaning is remembered

Registered = TypeVar("Registered", bound=Callable[..., Any])
Registry = TypeVar("Registry", bound="Names")

_plugin: ContextVar[str | None] = ContextVar("plugin that is being loaded", default=None)
# Not the lock of a table: a plugin's import may wait for a thread that registers something.
_plugin_lock = threading.RLock()


class _Table:
    """The rows by name and alias, indexed by whatever they are asked for; never changed, only replaced."""

    def __init__(self, rows: Mapping[str, ActivationEntry]) -> None:
        self.rows: dict[str, ActivationEntry] = {}
        for name, entry in rows.items():
            while rows[entry.name] is not entry:  # an alias stands for what has its row's name now
                entry = rows[entry.name]
            self.rows[name] = entry
        self.entries = list({id(entry): entry for entry in self.rows.values()}.values())
        # By the class of its modules, of several rows the last; a subclass may compute something else.
        self.by_type = {form.type: entry for entry in self.rows.values() for form in entry.modules}
        # By the identity of a function; of several rows the first.
        self.by_function = {id(function): entry for entry in reversed(self.entries) for function in entry.functions}
        self.resolved: dict[str, Resolved] = {}  # what texts without further arguments stand for, once asked


class Names:
    """Rows of activations by name; `ActivationRegistry` adds what is computed of them."""

    default: ClassVar["Names"]  # which is asked where none is given; `lit_gelu.activations.registry` sets it

    def __init__(self, entries: Iterable[ActivationEntry], *, entry_points: bool = False) -> None:
        self._lock = threading.RLock()
        self._plugins_wait = entry_points
        self._rows = _Table({})
        for entry in entries:
            self.add(entry)

    def register(
        self,
        name: str,
        *,
        aliases: Sequence[str] = (),
        override: bool = False,
        derivative: Callable[..., Tensor] | None = None,
        joint: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor | None]] | None = None,
        facts: ActivationFacts | Callable[..., ActivationFacts] | None = None,
        onnx: Any = None,
    ) -> Callable[[Registered], Registered]:
        """Return a decorator that registers a module class or a plain function from tensor to tensor.

        Args:
            name: The name to register.
            aliases: Other names for it.
            override: Whether it may take the place of what has one of these names. A name that is short for a spec, as
                ``gelu_tanh`` for ``gelu(approximate='tanh')``, means what that spec means then.
            derivative: ``derivative(x, order, **arguments)`` with ``order`` 1 or 2; without it, autograd is used.
            joint: ``joint(x, **arguments)``, which returns ``f``, ``f'``, ``f''`` and the gate ``f(x) / x`` (``None``
                if f(0) is not 0) from shared terms, for the statistics of `ActivationCurvatureMonitor`; without it they
                are evaluated one by one.
            facts: What is stated of it; see `ActivationFacts`.
            onnx: What it becomes in an ONNX file: a recipe such as ``"Mul(x, Sigmoid(x))"``, or recipes for several
                lowerings (`lit_gelu.activations.onnx_recipes`). Without it torch's exporter decomposes it.

        Returns:
            The decorator; it returns its argument. From then on the constructor of a class notes on every instance what
            it is given: see `spec_of`.

        Raises:
            ArgumentError: If a name is taken and ``override`` is false, or ``facts`` is neither.
            SpecError: If a name is no valid name.

        Example:
            >>> from lit_gelu.activations import ActivationRegistry
            >>> registry = ActivationRegistry()
            >>> @registry.register("bent_identity", aliases=("bent",))
            ... def bent_identity(x):
            ...     return (torch.sqrt(x**2 + 1) - 1) / 2 + x
            >>> import torch
            >>> registry.create("bent")(torch.tensor(0.0)).item()
            0.0
        """
        if not isinstance(name, str):
            raise SpecError(
                f"register({shown(name)}): the name comes first, in parentheses: @register('my_activation')."
            )
        if isinstance(aliases, str):
            raise SpecError(f"{name!r}: {aliases=} is one text. Give several names, such as ({aliases!r},).")
        if not (facts is None or isinstance(facts, ActivationFacts) or callable(facts)):
            raise ArgumentError(
                f"{name!r}: facts={shown(facts)} is not accepted. Give an ActivationFacts, such as "
                "ActivationFacts(smoothness=0), or a function from the activation's arguments to one."
            )

        def decorate(target: Registered) -> Registered:
            entry = entry_for(name, target, tuple(aliases), _plugin.get())
            stated = facts or ActivationFacts()
            self.add(replace(entry, derivative=derivative, joint=joint, facts=stated, onnx=onnx), override=override)
            return target

        return decorate

    def add(self, entry: ActivationEntry, *, override: bool = False) -> None:
        """Add one row; with ``override``, in the place of what has its name or one of its aliases.

        Raises:
            ArgumentError: If a name is taken and ``override`` is false.
        """
        name, *aliases = (ActivationSpec(name).name for name in (entry.name, *entry.aliases))
        if [name, *aliases] != [entry.name, *entry.aliases]:  # written in capitals
            entry = replace(entry, name=name, aliases=tuple(aliases))
        with self._lock:
            rows = self._rows.rows
            taken = None if override else next((name for name in (name, *aliases) if name in rows), None)
            if taken is not None:
                raise ArgumentError(
                    f"{taken!r} is registered already, by {rows[taken].registered_by or 'an unknown caller'}. "
                    "Choose another name, or pass override=True to take its place."
                )
            self._rows = _Table({**rows, **dict.fromkeys((name, *aliases), entry)})
        for form in entry.modules:
            if form.noted:
                note_constructions(form.type)

    @contextmanager
    def scope(self) -> Iterator[Self]:
        """Undo on leaving whatever is registered within, by whichever thread: for tests and trials.

        Yields:
            The registry.

        Example:
            >>> from lit_gelu.activations import ActivationRegistry
            >>> registry = ActivationRegistry()
            >>> with registry.scope():
            ...     _ = registry.register("relu", override=True)(nn.Softsign)
            ...     registry.create("relu")
            Softsign()
            >>> registry.create("relu")
            ReLU()
        """
        before = self._table  # with the plugins, which stay
        try:
            yield self
        finally:
            self._rows = before

    def create(self, spec: Any, *, trusted: bool = True, **kwargs: Any) -> nn.Module:
        """Return a new module, which shares no parameters with others.

        Args:
            spec: Any spec; see the class. A text or mapping may name a class or function by its dotted path.
            trusted: Whether a dotted path may be imported. ``False`` is for specs out of files: a text, a mapping or an
                `ActivationSpec`, in which a path is looked up among what is registered and imported already, such as
                ``"torch.nn.GELU"``; nothing else is imported or called.
            **kwargs: Arguments beside those in the spec; an argument may not be given twice.

        Raises:
            UnknownActivationError: If nobody registered the name; near names and the whole list are in the message.
            ArgumentError: If a keyword or a value is not accepted.
            SpecError: If it is no spec, or that of something never registered, or not trusted and names such a thing.

        Example:
            >>> from lit_gelu.activations import create
            >>> create("elu", alpha=0.5)
            ELU(alpha=0.5)
            >>> create("os.system(command='date')", trusted=False)
            Traceback (most recent call last):
            lit_gelu.errors.SpecError: 'os.system' stands in a file, and is no registered \
activation. Names in files are looked up, never imported: register it and let the file name that, or give the \
class itself in code, or its path on the command line or in YAML.
        """
        return self._resolved(spec, kwargs, trusted).build()

    def resolve(self, spec: Any, *, trusted: bool = True, **kwargs: Any) -> ActivationSpec:
        """Return a spec in canonical form: aliases and presets resolved, defaults dropped, arguments checked.

        Args:
            spec: Any spec; see the class.
            trusted: As in `create`.
            **kwargs: Arguments beside those in the spec.

        Example:
            >>> from lit_gelu.activations import resolve
            >>> str(resolve("quick_gelu"))
            "gelu(approximate='sigmoid')"
        """
        return self._resolved(spec, kwargs, trusted).spec

    def _resolved(self, spec: Any, kwargs: Mapping[str, Any], trusted: bool) -> Resolved:
        cache = self._table.resolved if isinstance(spec, str) and not kwargs else {}
        if isinstance(spec, str) and spec in cache:
            return cache[spec]
        read = read_spec(spec) if isinstance(spec, (str, Mapping)) and not isinstance(spec, nn.Module) else spec
        if isinstance(read, ActivationSpec):
            resolved = self._named(read, kwargs)
            if isinstance(spec, str) and not kwargs and len(cache) < _MOST_TEXTS:
                cache[spec] = resolved
            return resolved
        if isinstance(read, DottedPath):  # again each time, as who asks decides what may be imported
            arguments = merged(read.path, dict(read.arguments), kwargs)
            if trusted and not importing.comes_from_file(spec):
                return self._of_object(importing.import_object(read.path), arguments)
            return self._registered(read.path, arguments)
        if not trusted:
            raise SpecError(
                f"{shown(spec)} ({type(spec).__name__}) stands in a file where an activation should. Accepted: a text "
                "such as \"gelu(approximate='tanh')\", or a mapping {'name': ...}."
            )
        return self._of_object(spec, dict(kwargs))

    def _named(self, spec: ActivationSpec, kwargs: Mapping[str, Any]) -> Resolved:
        if spec.opaque:
            spec.for_checkpoint()  # raises, with the remedy
        entry, arguments = self.entry(spec.name), merged(spec.name, spec.arguments, kwargs)
        if entry.preset is not None:
            return self._named(ActivationSpec(entry.preset.name), merged(spec.name, entry.preset.arguments, arguments))
        return entry.resolved(arguments)

    def _named_function(self, function: object, kwargs: Mapping[str, Any]) -> Resolved | None:
        """Resolve a function that computes something registered, with arguments; ``None`` if no row has it."""
        entry = self._table.by_function.get(id(function))
        return None if entry is None else self._named(ActivationSpec(entry.name), kwargs)

    def _registered(self, path: object, arguments: dict[str, Any]) -> Resolved:
        """Resolve a dotted path out of a file to something registered, in modules that are imported already."""
        target = importing.imported_object(path)
        if isinstance(target, type) and (entry := self.entry_of_class(target)) is not None:
            return self._of_class(target, ActivationSpec.of(entry.name, **arguments).arguments)
        resolved = None if target is None else self._named_function(target, arguments)
        if resolved is None:
            raise SpecError(
                f"{shown(path)} stands in a file, and is no registered activation. Names in files are looked up, never "
                "imported: register it and let the file name that, or give the class itself in code, or its path on "
                "the command line or in YAML."
            )
        return resolved

    def _of_object(self, target: Any, kwargs: dict[str, Any]) -> Resolved:
        if isinstance(target, nn.Module):
            if kwargs:
                raise ArgumentError(
                    f"{type(target).__name__} is a module already, so {', '.join(kwargs)} cannot be set. Give its "
                    "class or its name."
                )
            return Resolved(self.spec_of(target), lambda: copy.deepcopy(target))
        if isinstance(target, type):
            return self._of_class(target, kwargs)
        if isinstance(target, functools.partial):
            called, positional, keywords = unfolded(target)
            if isinstance(called, type):
                return self._of_class(called, {**by_keyword(called, positional, keywords), **kwargs})
            if not positional:
                return self._of_object(called, {**keywords, **kwargs})
        if not callable(target):
            raise SpecError(
                f"{shown(target)} ({type(target).__name__}) does not name an activation. Accepted: {ACCEPTED}."
            )
        path = dotted_path(target)
        unregistered = Resolved(opaque(path, kwargs), lambda: FunctionActivation(target, path, kwargs))
        return self._named_function(target, kwargs) or unregistered

    def _of_class(self, cls: type, kwargs: dict[str, Any]) -> Resolved:
        """Resolve a class with arguments of its constructor; the spec is opaque if the class was never registered."""
        row, path = self.entry_of_class(cls), dotted_path(cls)
        if not issubclass(cls, nn.Module):
            raise SpecError(f"{path!r} is no torch.nn.Module class. Accepted: {ACCEPTED}.")

        def build() -> nn.Module:
            try:
                module = cls(**kwargs)
            except TypeError as error:
                raise ArgumentError(f"{path}({shown(kwargs)}) cannot be built: {message_of(error)}.") from error
            return module if row is None else row.remember(module, kwargs)

        if row is not None and row.tried:
            return Resolved(self._named(self.spec_of(without_memory(path, cls, kwargs)), {}).spec, build)
        spec = self.spec_of(build())
        return Resolved(opaque(spec.name, kwargs) if spec.opaque else spec, build)

    def spec_of(self, module: nn.Module) -> ActivationSpec:
        """Return the canonical spec of a module, torch's own included.

        Of a registered class of your own it has the arguments that the constructor was given, whatever the constructor
        made of them: a learnable parameter's initial value is in the spec, its present one in the ``state_dict``. An
        argument that stands as plain data in an attribute of its name is read there. What the constructor was given is
        noted from the registration on; an instance from before is read by such attributes alone.

        Args:
            module: Any module.

        Returns:
            Its spec; ``opaque`` if its class was never registered, or if it is not known what it was built with, or
            that is no plain data.

        Raises:
            SpecError: If it is no module.

        Example:
            >>> from lit_gelu.activations import spec_of
            >>> str(spec_of(nn.GELU(approximate="tanh")))
            "gelu(approximate='tanh')"
        """
        if not isinstance(module, nn.Module):
            raise SpecError(
                f"spec_of takes a torch.nn.Module, not {type(module).__name__}. For a text or a mapping use resolve()."
            )
        if (entry := self.entry_of(module)) is None:
            return opaque_spec(module)
        form = entry.form_of(module)
        try:
            if isinstance(module, FunctionActivation):
                return entry.canonical(module.kwargs)
            return entry.canonical(form.arguments(module) if form else {})
        except (SpecError, ArgumentError):
            return opaque_spec(module)  # built in a way that no spec says: a tensor for a number, arguments not noted

    def list_activations(self, filter: str = "*") -> list[str]:  # noqa: A002 - the name that timm's list_models has
        """Return the registered names that match a shell-style pattern, sorted; aliases are not listed.

        Example:
            >>> from lit_gelu.activations import list_activations
            >>> list_activations("*sigmoid")
            ['gelu_sigmoid', 'hard_sigmoid', 'log_sigmoid', 'sigmoid']
        """
        return sorted({e.name for e in self._table.entries if fnmatch.fnmatchcase(e.name, filter.lower())})

    def entry(self, name: str) -> ActivationEntry:
        """Return the row of a name or alias, in any case; `UnknownActivationError` if nobody registered it."""
        if (row := self._table.rows.get(name.lower())) is None:
            near = difflib.get_close_matches(name.lower()[:100], self._table.rows, n=3, cutoff=0.6)
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise UnknownActivationError(
                f"Unknown activation {shown(name)}.{hint} Registered: {', '.join(self.list_activations())}.", name
            )
        return row

    def entries(self) -> list[ActivationEntry]:
        """Return every row once, in the order of registration."""
        return list(self._table.entries)

    def entry_of(self, module: nn.Module) -> ActivationEntry | None:
        """Return the row that a module belongs to, ``None`` if its class was never registered."""
        if isinstance(module, FunctionActivation):
            row = self._table.rows.get(module.name)
            # Another may have taken the name since, by another function.
            is_same = row is not None and row.name == module.name and row.function is module.function
            return row if is_same else None
        return self.entry_of_class(type(module))

    def entry_of_class(self, cls: type) -> ActivationEntry | None:
        """Return the row whose modules are exactly of a class; of several, the one registered last."""
        return self._table.by_type.get(cls)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._table.rows

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.list_activations())} activations)"

    @property
    def _table(self) -> _Table:
        """The rows; at the first look-up the installed plugins are loaded."""
        if self._plugins_wait:
            with _plugin_lock:
                if self._plugins_wait:
                    self._plugins_wait = False  # first: plugins look names up while they load
                    if os.environ.get(SWITCH, "1").lower() not in {"0", "false", "off", "no"}:
                        for entry_point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
                            self._load(entry_point)
        return self._rows

    def _load(self, entry_point: EntryPoint) -> None:
        distribution = f" {entry_point.dist.name} {entry_point.dist.version}" if entry_point.dist else ""
        description = f"plugin{distribution} ({entry_point.value})"
        token = _plugin.set(description)
        try:
            loaded = entry_point.load()
            if not inspect.ismodule(loaded):
                self.register(entry_point.name)(loaded)
        except Exception as error:  # noqa: BLE001 - whatever somebody else's package raises must not take ours down
            warnings.warn(
                f"The activation {entry_point.name!r} of {description} could not be loaded: {type(error).__name__}: "
                f"{error}. The others work. Upgrade or uninstall that distribution, or set {SWITCH}=0 to load no "
                "plugins.",
                stacklevel=2,
            )
        finally:
            _plugin.reset(token)

    def __getstate__(self) -> dict[str, Any]:
        return {"rows": self._rows.rows, "plugins_wait": self._plugins_wait}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._lock = threading.RLock()  # a lock cannot be pickled
        self._plugins_wait, self._rows = state["plugins_wait"], _Table(state["rows"])


def registry_or_default(requested: Registry | None) -> Registry:
    """Return the requested registry, or the default one: `lit_gelu.activations.registry`."""
    return cast("Registry", Names.default) if requested is None else requested
