"""One registered activation, how to build, compute, differentiate and recognise it; and the table of all of them."""

import inspect
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args, get_origin

import torch
from torch import Tensor, nn

from lit_gelu.activations.errors import (
    ActivationArgumentError,
    ActivationSpecError,
    DuplicateActivationError,
    UnknownArgumentsError,
)
from lit_gelu.activations.gpu.autograd import Kernel
from lit_gelu.activations.gpu.modules import plain_class
from lit_gelu.activations.naming.facts import ActivationFacts
from lit_gelu.activations.naming.forms import (
    NOT_IN_SPECS,
    CallForm,
    ConstructionArguments,
    FunctionActivation,
    ModuleForm,
    PresentArguments,
    noted,
)
from lit_gelu.activations.naming.plugins import PluginLoader
from lit_gelu.activations.naming.spec import ActivationSpec, dotted_path, opaque
from lit_gelu.activations.numerics.normal import GaussianMoments
from lit_gelu.errors import LitGeluError, message_of, shown

# A kernel of its own; ``"generated"``: torch.compile makes one of what a module does; ``"off"``: none. ``"auto"`` is
# ``"generated"`` where a pure function says what the modules do: a class may do more. A form's ``fused`` comes before
# all but ``"off"``.
OwnKernel = Kernel | Literal["auto", "generated", "off"]

_PLAIN = (str, int, float, tuple, list, type(None))


@dataclass(frozen=True)
class Resolved:
    """An activation made definite: its canonical spec, and what builds a new module of it."""

    spec: ActivationSpec
    build: Callable[[], nn.Module]


@dataclass(frozen=True)
class FunctionBuilder:
    """Builds the module of a plain function; a class, so that a registry can be pickled."""

    function: Callable[..., Tensor]
    name: str

    def __call__(self, **kwargs: Any) -> nn.Module:
        """Build it."""
        return FunctionActivation(self.function, self.name, kwargs)


@dataclass(frozen=True)
class ActivationEntry:
    """One row of the registry.

    Args:
        name: Canonical name.
        build: From keyword arguments to a new module.
        function: ``f(x, **arguments)``; ``None`` means the module itself.
        derivative: ``f'`` or ``f''`` in closed form, called ``derivative(x, order, **arguments)``; ``None`` means
            autograd.
        joint: ``f``, ``f'``, ``f''`` and the gate together, to six digits, called ``joint(x, **arguments)``; see
            `lit_gelu.activations.numerics.joint`. ``None``: they are evaluated one by one.
        moments: Its Gaussian moments in closed form, called ``moments(mean, std, **arguments)`` with float64 tensors
            and those arguments that are numbers; NaN where the form has lost its digits. ``None``: quadrature.
        facts: What is stated of it, or a callable from the arguments to that.
        aliases: Other names.
        modules: The module classes that are this activation.
        functions: Functions that compute it, with the arguments that they stand for.
        calls: Functions whose calls have other arguments than a spec, as that of ``F.prelu`` has the weight itself.
        preset: If this name is another activation with given arguments, that spec.
        objects: Arguments that may be objects with no text form; with such a one the activation's spec is opaque.
        tried: Whether ``build`` does nothing but check and allocate, so that a spec's values are tried on torch's
            ``meta`` device, without memory, when the spec is read.
        registered_by: Who registered it.
        onnx: What it becomes in an ONNX file: a recipe as text, `OnnxRecipes` for several lowerings, `OnnxCases` where
            its arguments decide, or an onnxscript function; ``None`` leaves it to the exporter. Only
            `lit_gelu.export` reads it.
        kernel: What computes it on a GPU in 16 bits, once `lit_gelu.kernels.fuse` is asked; see `OwnKernel`.
    """

    name: str
    build: Callable[..., nn.Module]
    function: Callable[..., Tensor] | None = None
    derivative: Callable[..., Tensor] | None = None
    joint: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor | None]] | None = None
    moments: Callable[..., GaussianMoments] | None = None
    facts: ActivationFacts | Callable[..., ActivationFacts] = field(default_factory=ActivationFacts)
    aliases: tuple[str, ...] = ()
    modules: tuple[ModuleForm, ...] = ()
    functions: tuple[tuple[Callable[..., Any], tuple[tuple[str, Any], ...]], ...] = ()
    calls: tuple[CallForm, ...] = ()
    preset: ActivationSpec | None = None
    objects: tuple[str, ...] = ()
    tried: bool = False
    registered_by: str = ""
    onnx: Any = None
    kernel: OwnKernel = "auto"

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The keywords that a spec may give, with their defaults; ``device`` and ``dtype`` are not its matter."""
        skip_first = isinstance(self.build, FunctionBuilder)
        target = self.build.function if isinstance(self.build, FunctionBuilder) else self.build
        try:
            parameters = _parameters_of(target)[int(skip_first) :]
        except ValueError:  # a function written in C that does not tell
            return {}
        keyword_kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return {p.name: p for p in parameters if p.kind in keyword_kinds and p.name not in NOT_IN_SPECS}

    @cached_property
    def _required(self) -> list[str]:
        return [key for key, parameter in self.parameters.items() if parameter.default is inspect.Parameter.empty]

    @cached_property
    def _forms(self) -> dict[type[nn.Module], ModuleForm]:
        return {cls: form for form in reversed(self.modules) for cls in form.types}

    @cached_property
    def _usual_facts(self) -> ActivationFacts:
        return self.facts() if callable(self.facts) else self.facts

    @cached_property
    def _usual_spec(self) -> ActivationSpec:
        return ActivationSpec(self.name)

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # without what was worked out of them

    def resolved(self, arguments: dict[str, Any]) -> Resolved:
        """Return the canonical spec for given keyword arguments, and what builds it; opaque if no text can hold one."""
        if self.objects and self.holds_object(arguments):
            return Resolved(opaque(dotted_path(self.build), arguments), lambda: self.build(**arguments))
        spec = self.canonical(arguments)
        canonical = dict(spec.kwargs)
        if self.tried and canonical:
            without_memory(self.name, self.build, canonical)
        return Resolved(spec, lambda: self.remember(self.build(**canonical), canonical))

    def canonical(self, arguments: dict[str, Any]) -> ActivationSpec:
        """Return the canonical spec for given keyword arguments; see `canonical_arguments`."""
        if arguments:
            spec = ActivationSpec(self.name, tuple(arguments.items()))
            kept = self.canonical_arguments(dict(spec.kwargs))
            if kept:
                return spec if len(kept) == len(spec.kwargs) else ActivationSpec(self.name, tuple(kept.items()))
        elif self._required:
            self.canonical_arguments(arguments)
        return self._usual_spec

    def remember(self, module: nn.Module, arguments: dict[str, Any]) -> nn.Module:
        """Note what a module of this activation was built from, if its constructor does not; return the module."""
        form = self._forms.get(type(module))  # without a kernel: it has just been built
        return noted(module, arguments) if form and isinstance(form.read, ConstructionArguments) else module

    def holds_object(self, arguments: dict[str, Any]) -> bool:
        """Say whether an argument is an object that no text can stand for."""
        return any(key in arguments and not isinstance(arguments[key], _PLAIN) for key in self.objects)

    def facts_for(self, arguments: dict[str, Any]) -> ActivationFacts:
        """Return the stated facts for given arguments of the spec."""
        if not callable(self.facts):
            return self.facts
        return self.facts(**arguments) if arguments else self._usual_facts

    def form_of(self, module: nn.Module) -> ModuleForm | None:
        """Return the form whose class is exactly the module's, ``None`` if it is not this activation."""
        return self._forms.get(plain_class(type(module)))

    def live_arguments(self, module: nn.Module) -> dict[str, Any] | None:
        """Return the present arguments of the pure function; ``None`` if the module alone says what it computes."""
        if isinstance(module, FunctionActivation):
            return dict(module.kwargs)
        form = self._forms.get(plain_class(type(module)))
        try:
            return None if form is None else form.live_arguments(module)
        except UnknownArgumentsError:
            return None

    def canonical_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Check keyword arguments against the signature and drop those that equal their defaults."""
        # ``inplace`` is accepted by every activation, as in timm, so that one can stand for another; where there is no
        # in-place form it is dropped.
        accepted, kept = self.parameters, {}
        for key, value in arguments.items():
            parameter = accepted.get(key)
            if parameter is None:
                if key == "inplace":
                    continue
                known = ", ".join(accepted) or "none"
                raise ActivationArgumentError(f"{self.name!r} has no argument {shown(key)}. It accepts: {known}.")
            _check_type(self.name, parameter, value)
            if value != parameter.default:
                kept[key] = value
        if self._required and not arguments.keys() >= set(self._required):
            missing = ", ".join(key for key in self._required if key not in arguments)
            raise ActivationArgumentError(f"{self.name!r} needs a value for: {missing}.")
        return kept


def check_names(name: object, aliases: object) -> None:
    """Refuse what `register` is given in the place of a name, and one text in the place of several."""
    if not isinstance(name, str):
        raise ActivationSpecError(
            f"register({shown(name)}): the name comes first, in parentheses: @register('my_activation')."
        )
    if isinstance(aliases, str):
        raise ActivationSpecError(f"{name!r}: {aliases=} is one text. Give several names, such as ({aliases!r},).")


def entry_for(
    name: str, target: Any, aliases: tuple[str, ...], registered_by: str | None, kernel: OwnKernel = "auto"
) -> ActivationEntry:
    """Make the row of a module class or of a plain function; anything else raises `ActivationSpecError`."""
    is_class = isinstance(target, type)
    if isinstance(target, nn.Module) or not callable(target) or (is_class and not issubclass(target, nn.Module)):
        raise ActivationSpecError(
            f"{name!r}: cannot register {target!r}. Give a torch.nn.Module class or a function from tensor to tensor."
        )
    _check_kernel(name, kernel)
    if registered_by is None:
        named = target if hasattr(target, "__qualname__") else type(target)  # such as that of a functools.partial
        registered_by = f"{named.__module__}.{named.__qualname__}"
    if is_class:
        entry = ActivationEntry(name, target, aliases=aliases, registered_by=registered_by, kernel=kernel)
        names = tuple(entry.parameters)
        form = ModuleForm(target, ConstructionArguments(names), live=PresentArguments(names))
        return replace(entry, modules=(form,))
    builder = FunctionBuilder(target, ActivationSpec(name).name)
    return ActivationEntry(
        name,
        builder,
        function=target,
        functions=((target, ()),),
        aliases=aliases,
        registered_by=registered_by,
        kernel=kernel,
    )


def without_memory(name: str, build: Callable[..., nn.Module], arguments: dict[str, Any]) -> nn.Module:
    """Build a module on the meta device, so that a value that it refuses is refused when the spec is read."""
    try:
        with torch.device("meta"):
            return build(**arguments)
    except LitGeluError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # of torch's own modules
        raise ActivationArgumentError(f"{name}({shown(arguments)}) cannot be built: {message_of(error)}.") from error


def _check_kernel(name: str, kernel: object) -> None:
    """Refuse what a row cannot say of kernels."""
    words = get_args(get_args(OwnKernel)[1])
    if not isinstance(kernel, Kernel) and not (isinstance(kernel, str) and kernel in words):
        raise ActivationArgumentError(
            f"{name!r}: kernel={shown(kernel)} is not accepted. Use one of {', '.join(map(repr, words))}, or a "
            "lit_gelu.kernels.Kernel."
        )


def _parameters_of(target: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function or class; a list as a default is the tuple that a spec has for it."""
    try:
        signature = inspect.signature(target, eval_str=True)
    except (NameError, AttributeError, TypeError, SyntaxError):  # an annotation that only a type checker can read
        signature = inspect.signature(target)
    return [
        parameter.replace(default=tuple(parameter.default)) if isinstance(parameter.default, list) else parameter
        for parameter in signature.parameters.values()
    ]


def _check_type(name: str, parameter: inspect.Parameter, value: object) -> None:
    """Refuse a value whose type cannot be that of the parameter's default."""
    default = parameter.default
    if default is inspect.Parameter.empty or default is None:
        return
    expected = (int, float) if isinstance(default, float) else type(default)
    if isinstance(value, tuple) and any(get_origin(kind) is tuple for kind in get_args(parameter.annotation)):
        return
    if not isinstance(value, expected) or (isinstance(value, bool) and not isinstance(default, bool)):
        kind = "a number" if isinstance(default, float) else f"of type {type(default).__name__}"
        raise ActivationArgumentError(
            f"{name!r}: {parameter.name}={shown(value)} is not accepted; it must be {kind}, such as "
            f"{parameter.name}={default!r}."
        )


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
        self.by_type = {cls: entry for entry in rows.values() for form in entry.modules for cls in form.types}
        # By the identity of a function, with the arguments that it stands for; the row registered first.
        self.by_function = {
            id(function): (entry, dict(arguments))
            for entry in reversed(self.entries)
            for function, arguments in reversed(entry.functions)
        }

    def of_class(self, cls: type) -> ActivationEntry | None:
        """Return the row of a module class, with its kernel or without."""
        return self.by_type.get(plain_class(cls))


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
