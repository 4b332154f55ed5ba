"""One registered activation: how to build, compute, differentiate and recognise it."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_args, get_origin

import torch
from torch import Tensor, nn

from lit_gelu.activations.errors import (
    ActivationArgumentError,
    ActivationSpecError,
    UnknownArgumentsError,
)
from lit_gelu.activations.naming.facts import ActivationFacts
from lit_gelu.activations.naming.forms import (
    NOT_IN_SPECS,
    CallForm,
    ConstructionArguments,
    FunctionActivation,
    ModuleForm,
    PresentArguments,
    noted,
    unfolded,
)
from lit_gelu.activations.naming.spec import ActivationSpec, dotted_path, opaque
from lit_gelu.activations.numerics.normal import GaussianMoments
from lit_gelu.errors import LitGeluError, message_of, shown

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
        base: The row of that other activation. It stays what this name stands for when another row takes its name;
            `ActivationRegistry.add` fills it in.
        objects: Arguments that may be objects with no text form; with such a one the activation's spec is opaque.
        tried: Whether ``build`` does nothing but check and allocate, so that a spec's values are tried on torch's
            ``meta`` device, without memory, when the spec is read.
        registered_by: Who registered it.
        onnx: What it becomes in an ONNX file: a recipe as text, `OnnxRecipes` for several lowerings, `OnnxCases` where
            its arguments decide, or an onnxscript function; ``None`` leaves it to the exporter. Only
            `lit_gelu.export` reads it.
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
    base: "ActivationEntry | None" = field(default=None, repr=False)
    objects: tuple[str, ...] = ()
    tried: bool = False
    registered_by: str = ""
    onnx: Any = None

    @functools.cached_property
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

    @functools.cached_property
    def _required(self) -> list[str]:
        return [key for key, parameter in self.parameters.items() if parameter.default is inspect.Parameter.empty]

    @functools.cached_property
    def _forms(self) -> dict[type[nn.Module], ModuleForm]:
        return {form.type: form for form in reversed(self.modules)}

    @functools.cached_property
    def _usual_facts(self) -> ActivationFacts:
        return self.facts() if callable(self.facts) else self.facts

    @functools.cached_property
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
        form = self._forms.get(type(module))
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
        return self._forms.get(type(module))

    def live_arguments(self, module: nn.Module) -> dict[str, Any] | None:
        """Return the present arguments of the pure function; ``None`` if the module alone says what it computes."""
        if isinstance(module, FunctionActivation):
            return dict(module.kwargs)
        form = self._forms.get(type(module))
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


def entry_for(name: str, target: Any, aliases: tuple[str, ...], registered_by: str | None) -> ActivationEntry:
    """Make the row of a module class or of a plain function; anything else raises `ActivationSpecError`."""
    is_class = isinstance(target, type)
    if isinstance(target, nn.Module) or not callable(target) or (is_class and not issubclass(target, nn.Module)):
        raise ActivationSpecError(
            f"{name!r}: cannot register {target!r}. Give a torch.nn.Module class or a function from tensor to tensor."
        )
    if isinstance(target, functools.partial) and isinstance(called := unfolded(target)[0], type):
        raise ActivationSpecError(
            f"{name!r}: cannot register a functools.partial of the class {called.__qualname__}. Register the class and "
            "give its arguments in specs, or register a subclass with other defaults."
        )
    if registered_by is None:
        named = target if hasattr(target, "__qualname__") else type(target)  # such as that of a functools.partial
        registered_by = f"{named.__module__}.{named.__qualname__}"
    if is_class:
        entry = ActivationEntry(name, target, aliases=aliases, registered_by=registered_by)
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
