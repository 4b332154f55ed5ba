"""`ActivationRegistry`: from any way of naming an activation to a module, and back."""

import difflib
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from torch import Tensor, nn

from lit_gelu.activations.analysis.gains import computed_facts
from lit_gelu.activations.errors import (
    ActivationArgumentError,
    ActivationSpecError,
    UnknownActivationError,
    UnknownArgumentsError,
)
from lit_gelu.activations.families import ENTRIES
from lit_gelu.activations.naming import importing
from lit_gelu.activations.naming.entry import (
    ActivationEntry,
    ActivationFacts,
    ActivationInfo,
    Resolved,
    check_names,
    entry_for,
)
from lit_gelu.activations.naming.forms import (
    ConstructionArguments,
    FunctionActivation,
    note_constructions,
    opaque_spec,
)
from lit_gelu.activations.naming.name_table import NameTable, PluginLoader, current_plugin, set_default_names
from lit_gelu.activations.naming.spec import ActivationSpec, merged, read_spec
from lit_gelu.activations.naming.stored import StoredActivations
from lit_gelu.activations.numerics.normal import GaussianMoments
from lit_gelu.errors import shown

if TYPE_CHECKING:
    from lit_gelu.activations.integrations import Installation

Registered = TypeVar("Registered", bound=Callable[..., Any])

_MOST_TEXTS = 1024  # whose meaning is remembered


class ActivationRegistry:
    """Names of activations, and what stands behind them.

    A *spec* is any of: a text (``"gelu"``, ``"leaky_relu(negative_slope=0.2)"``), a mapping
    (``{"name": "gelu", "approximate": "tanh"}`` or ``{"class_path": "torch.nn.ELU", "init_args": {"alpha": 0.5}}``), an
    `ActivationSpec`, a module class, a function from tensor to tensor, or a module, which is copied. Every call of
    `create` gives a new module.

    Names are in lower case and are looked up without regard to case. Registries can be pickled and copied, and used
    from several threads.

    Args:
        entries: The rows to start with; by default those of this package.
        entry_points: Whether activations of installed plugins are loaded at the first look-up.

    Example:
        >>> registry = ActivationRegistry()
        >>> registry.create("leaky_relu(negative_slope=0.2)")
        LeakyReLU(negative_slope=0.2)
        >>> @registry.register("cube")
        ... def cube(x, scale=1.0):
        ...     return scale * x**3
        >>> str(registry.spec_of(registry.create("cube(scale=2)")))
        'cube(scale=2)'
    """

    def __init__(self, entries: tuple[ActivationEntry, ...] | None = None, *, entry_points: bool = False) -> None:
        rows = {name: entry for entry in ENTRIES for name in (entry.name, *entry.aliases)} if entries is None else {}
        self._table = NameTable(rows, PluginLoader(enabled=True) if entry_points else None)
        for entry in entries or ():
            self.add(entry)

    def register(
        self,
        name: str,
        *,
        aliases: Sequence[str] = (),
        override: bool = False,
        derivative: Callable[..., Tensor] | None = None,
        joint: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor | None]] | None = None,
        moments: Callable[..., GaussianMoments] | None = None,
        facts: ActivationFacts | Callable[..., ActivationFacts] | None = None,
        registered_by: str | None = None,
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
            moments: ``moments(mean, std, **arguments)``, its moments for normal pre-activations in closed form, NaN
                where they have lost their digits; without it quadrature. For a function made of pieces
                `numerics.piecewise.PiecewiseMoments` makes them.
            facts: What is stated of it; see `ActivationFacts`.
            registered_by: Who registers it; by default the module and name of the decorated object.
            onnx: What it becomes in an ONNX file: a recipe such as ``"Mul(x, Sigmoid(x))"``, or recipes for several
                lowerings (`lit_gelu.activations.onnx_recipes`). Without it torch's exporter decomposes it.

        Returns:
            The decorator; it returns its argument. From then on the constructor of a class notes on every instance what
            it is given: see `spec_of`.

        Raises:
            DuplicateActivationError: If a name is taken and ``override`` is false.
            ActivationSpecError: If a name is no valid name.
            ActivationArgumentError: If ``facts`` is neither.

        Example:
            >>> registry = ActivationRegistry()
            >>> @registry.register("bent_identity", aliases=("bent",))
            ... def bent_identity(x):
            ...     return (torch.sqrt(x**2 + 1) - 1) / 2 + x
            >>> import torch
            >>> registry.create("bent")(torch.tensor(0.0)).item()
            0.0
        """
        check_names(name, aliases)
        if not (facts is None or isinstance(facts, ActivationFacts) or callable(facts)):
            raise ActivationArgumentError(
                f"{name!r}: facts={shown(facts)} is not accepted. Give an ActivationFacts, such as "
                "ActivationFacts(smoothness=0), or a function from the activation's arguments to one."
            )

        def decorate(target: Registered) -> Registered:
            entry = entry_for(name, target, tuple(aliases), registered_by or current_plugin())
            row = replace(
                entry, derivative=derivative, joint=joint, moments=moments, facts=facts or ActivationFacts(), onnx=onnx
            )
            self.add(row, override=override)
            return target

        return decorate

    def add(self, entry: ActivationEntry, *, override: bool = False) -> None:
        """Add one row.

        Args:
            entry: The row.
            override: Whether it may take the place of what has its name or one of its aliases.

        Raises:
            DuplicateActivationError: If a name is taken and ``override`` is false.
        """
        names = [ActivationSpec(name).name for name in (entry.name, *entry.aliases)]
        if names != [entry.name, *entry.aliases]:
            entry = replace(entry, name=names[0], aliases=tuple(names[1:]))
        self._table.add(entry, names, override=override)
        for form in entry.modules:
            if isinstance(form.read, ConstructionArguments):
                note_constructions(form.type)

    def create(self, spec: Any, **kwargs: Any) -> nn.Module:
        """Build a new module.

        Args:
            spec: Any spec; see the class.
            **kwargs: Arguments beside those in the spec; an argument may not be given twice.

        Returns:
            A module of its own: two calls never share parameters.

        Raises:
            UnknownActivationError: If nobody registered the name; near names and the whole list are in the message.
            ActivationArgumentError: If a keyword or a value is not accepted.
            ActivationSpecError: If it is no spec.
            OpaqueActivationError: If it is the spec of something never registered.

        A text or mapping may name a class or function by its dotted path, which is imported: for what a file says use
        `stored` instead.

        Example:
            >>> ActivationRegistry().create("elu", alpha=0.5)
            ELU(alpha=0.5)
        """
        return self._resolved(spec, kwargs).build()

    def resolve(self, spec: Any, **kwargs: Any) -> ActivationSpec:
        """Return a spec in canonical form: aliases and presets resolved, defaults dropped, arguments checked.

        Args:
            spec: Any spec; see the class.
            **kwargs: Arguments beside those in the spec.

        Returns:
            The canonical spec; equal for two specs of the same function.

        Raises:
            UnknownActivationError: As `create`.
            ActivationArgumentError: As `create`.
            ActivationSpecError: As `create`.

        Example:
            >>> str(ActivationRegistry().resolve("quick_gelu"))
            "gelu(approximate='sigmoid')"
        """
        return self._resolved(spec, kwargs).spec

    def _resolved(self, spec: Any, kwargs: dict[str, Any]) -> Resolved:
        cache = self._table.seen(self).resolved if isinstance(spec, str) and not kwargs else {}
        if cache and spec in cache:
            return cache[spec]
        read = read_spec(spec) if isinstance(spec, str) else spec
        if not isinstance(read, ActivationSpec):
            return importing.resolved(self, spec, kwargs)  # again each time: who asks decides what may be imported
        resolved = self.named(read, kwargs)
        if read is not spec and not kwargs and len(cache) < _MOST_TEXTS:
            cache[spec] = resolved
        return resolved

    def named(self, spec: ActivationSpec, kwargs: Mapping[str, Any]) -> Resolved:
        """Resolve the spec of a registered name, with further arguments: what `create` builds and `resolve` returns."""
        if spec.opaque:
            spec.for_checkpoint()  # raises, with the remedy
        entry, arguments = self.entry(spec.name), dict(spec.kwargs)
        if kwargs:
            arguments = merged(spec.name, arguments, kwargs)
        if entry.preset is not None:
            preset = entry.preset
            arguments = merged(spec.name, preset.arguments, entry.canonical_arguments(arguments))
            return self.named(ActivationSpec(preset.name), arguments)
        return entry.resolved(arguments)

    def named_function(self, function: object, kwargs: Mapping[str, Any]) -> Resolved | None:
        """Resolve a function that computes something registered, with arguments; ``None`` if no row has it."""
        entry, bound = self._table.seen(self).by_function.get(id(function), (None, {}))
        return None if entry is None else self.named(ActivationSpec(entry.name), merged(entry.name, bound, kwargs))

    @property
    def stored(self) -> StoredActivations:
        """The registry for specs out of files: registered names are looked up, and nothing is imported or called."""
        return StoredActivations(self)

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
            ActivationSpecError: If it is no module.

        Example:
            >>> str(ActivationRegistry().spec_of(nn.GELU(approximate="tanh")))
            "gelu(approximate='tanh')"
        """
        if not isinstance(module, nn.Module):
            raise ActivationSpecError(
                f"spec_of takes a torch.nn.Module, not {type(module).__name__}. For a text or a mapping use resolve()."
            )
        entry = self.entry_of(module)
        if entry is None:
            return opaque_spec(module)
        form = entry.form_of(module)
        try:
            arguments = module.kwargs if isinstance(module, FunctionActivation) else form.read(module) if form else {}
            if not (entry.objects and entry.holds_object(arguments)):
                return entry.canonical(arguments)
        except (UnknownArgumentsError, ActivationArgumentError, ActivationSpecError):
            pass  # built in a way that no spec says: a tensor for a number, arguments that nobody noted
        return opaque_spec(module)

    def list_activations(self, filter: str = "*") -> list[str]:  # noqa: A002 - the name that timm's list_models has
        """Return the registered names that match a pattern, sorted; aliases are not listed.

        Args:
            filter: A shell-style pattern.

        Returns:
            The names.

        Example:
            >>> ActivationRegistry().list_activations("*sigmoid")
            ['gelu_sigmoid', 'hard_sigmoid', 'log_sigmoid', 'sigmoid']
        """
        return sorted({e.name for e in self._table.seen(self).entries if fnmatch.fnmatchcase(e.name, filter.lower())})

    def info(self, spec: Any) -> ActivationInfo:
        """Return what is known of an activation; see `ActivationInfo`.

        Args:
            spec: Any spec of something registered.

        Returns:
            The facts that were stated and those computed.

        Raises:
            ActivationSpecError: If it was never registered.

        Example:
            >>> ActivationRegistry().info("hard_swish").kinks
            ((-3.0, -0.5), (3.0, -0.5))
        """
        canonical = self.resolve(spec)
        if canonical.opaque:
            raise ActivationSpecError(
                f"{canonical.name!r} was never registered, so nothing is known of it. Register it first."
            )
        entry = self.entry(canonical.name)
        facts = entry.facts_for(canonical.arguments)
        presets = [row for row in self.entries() if row.preset == canonical]
        names = [name for row in presets for name in (row.name, *row.aliases) if self.entry(name) is row]
        aliases = () if names and canonical.kwargs else entry.aliases  # which stand for the entry without arguments
        aliases = tuple(name for name in aliases if self.entry(name) is entry)  # another may have taken one since
        return ActivationInfo(
            spec=canonical,
            aliases=(*aliases, *names),
            registered_by=entry.registered_by,
            **vars(facts),
            **computed_facts(canonical, facts, self),
        )

    def entry(self, name: str) -> ActivationEntry:
        """Return the row of a name or alias.

        Args:
            name: A name or alias, in any case.

        Returns:
            The row.

        Raises:
            UnknownActivationError: If nobody registered it.

        Example:
            >>> ActivationRegistry().entry("hardswish").name
            'hard_swish'
        """
        row = self._table.seen(self).rows.get(name.lower())
        if row is None:
            near = difflib.get_close_matches(name.lower()[:100], self._table.seen(self).rows, n=3, cutoff=0.6)
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise UnknownActivationError(
                f"Unknown activation {shown(name)}.{hint} Registered: {', '.join(self.list_activations())}.", name
            )
        return row

    def entries(self) -> list[ActivationEntry]:
        """Return every row once, in the order of registration.

        Returns:
            The rows.

        Example:
            >>> len(ActivationRegistry(()).entries())
            0
        """
        return list(self._table.seen(self).entries)

    def entry_of(self, module: nn.Module) -> ActivationEntry | None:
        """Return the row that a module belongs to.

        Args:
            module: Any module.

        Returns:
            The row, ``None`` if its class was never registered.

        Example:
            >>> ActivationRegistry().entry_of(nn.SiLU()).name
            'silu'
        """
        if isinstance(module, FunctionActivation):
            row = self._table.seen(self).rows.get(module.name)
            return row if row is not None and module.is_of(row.name, row.function) else None
        return self.entry_of_class(type(module))

    def entry_of_class(self, cls: type) -> ActivationEntry | None:
        """Return the row whose modules are exactly of a class; of several, the one registered last."""
        return self._table.seen(self).by_type.get(cls)

    def install(self, library: str, *, override: bool = False) -> "Installation":
        """Make the names usable in another library's configurations, specs with arguments included.

        ``"transformers"``: ``hidden_act="gaussian_gelu"`` in a configuration, and what else is looked up in ``ACT2FN``.
        ``"timm"``: ``act_layer="gaussian_gelu"`` in ``timm.create_model``, for models that look their activation up.

        Args:
            library: ``"timm"`` or ``"transformers"``. It is imported now, and only now.
            override: Whether names that the library has too (``"gelu"``) get this registry's meaning.

        Returns:
            What undoes it: call its ``uninstall()``, or use it as a context manager. Installing twice is installing
            once.

        Raises:
            UnknownLibraryError: If there is no integration with it.
            MissingLibraryError: If it is not installed.
            AlreadyInstalledError: If another registry's names are there, or the other ``override``.

        Example:
            >>> ActivationRegistry().install("flax")
            Traceback (most recent call last):
            lit_gelu.errors.ArgumentError: There is no integration with 'flax'. Accepted: \
'timm', 'transformers'.
        """
        from lit_gelu.activations.integrations import install

        return install(self, library, override=override)

    @contextmanager
    def scope(self) -> Iterator[Self]:
        """Undo on leaving whatever is registered within: for tests and trials.

        A scope belongs to the context that opens it: a thread, a task of asyncio. Other threads do not see what is
        registered within, and what they register stays. A thread that shall see it is given the context:
        ``Thread(target=contextvars.copy_context().run, args=(work,))``.

        Yields:
            The registry.

        Example:
            >>> registry = ActivationRegistry()
            >>> with registry.scope():
            ...     _ = registry.register("relu", override=True)(nn.Softsign)
            ...     registry.create("relu")
            Softsign()
            >>> registry.create("relu")
            ReLU()
        """
        self._table.seen(self)  # plugins stay when the scope ends
        layer = self._table.push()
        try:
            yield self
        finally:
            self._table.drop(layer)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._table.seen(self).rows

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.list_activations())} activations)"


class _DefaultRegistry(ActivationRegistry):
    """One in a process: a copy is itself, and in another process it becomes the one there, with what was added."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _default_with, (tuple(entry for entry in self.entries() if entry not in ENTRIES),)


def _default_with(added: tuple[ActivationEntry, ...]) -> ActivationRegistry:
    """Return this process's default registry, with the rows of another process's that it lacks."""
    here = registry.entries()
    for entry in added:
        if entry not in here:
            registry.add(entry, override=True)
    return registry


registry: ActivationRegistry = _DefaultRegistry(entry_points=True)
set_default_names(registry)


def registry_or_default(requested: ActivationRegistry | None) -> ActivationRegistry:
    """Return the requested registry, or the default one."""
    return registry if requested is None else requested
