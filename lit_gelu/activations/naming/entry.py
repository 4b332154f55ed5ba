"""One registered activation: how to build, compute, differentiate and recognise it, and what is stated of it."""

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self, get_args, get_origin

import torch
from torch import Tensor, nn

from lit_gelu.activations.naming.construction import noted, noted_arguments, present_arguments, unfolded
from lit_gelu.activations.naming.spec import NOT_OF_THE_FUNCTION, ActivationSpec, dotted_path, keywords_of, opaque
from lit_gelu.errors import ArgumentError, LitGeluError, SpecError, message_of, shown


@dataclass(frozen=True)
class ActivationFacts:
    """The facts about an activation that cannot be computed from its values; given at registration.

    Args:
        formula: ``f(x)`` in plain text.
        reference: Where it was defined.
        smoothness: How many derivatives are continuous; ``math.inf`` for all, ``None`` if not stated.
        asymptotes: What ``f`` approaches on the left and on the right, as text in ``x``.
        kinks: ``(x, f'(x+) - f'(x-))`` wherever ``f'`` jumps.
        elementwise: Whether output element ``i`` depends on input element ``i`` alone.
        halves: Whether it halves a dimension, one half gating the other; then it can stand for no elementwise
            activation, nor one for it.
        stochastic: Whether it draws random numbers in training.
        learnable: Whether it has parameters that are trained.
        gate: Whether it usually gates another value (sigmoid, tanh) rather than standing between two layers.

    Example:
        >>> ActivationFacts("max(x, 0)", smoothness=0, kinks=((0.0, 1.0),)).kinks
        ((0.0, 1.0),)
    """

    formula: str = ""
    reference: str = ""
    smoothness: float | None = None
    asymptotes: tuple[str, str] | None = None
    kinks: tuple[tuple[float, float], ...] = ()
    elementwise: bool = True
    halves: bool = False
    stochastic: bool = False
    learnable: bool = False
    gate: bool = False


ReadArguments = Callable[[nn.Module], dict[str, Any]]


class FunctionActivation(nn.Module):
    """``f(x, **kwargs)`` of a plain function, so that it can stand in a model, be found and be swapped.

    Args:
        function: Takes a tensor and keyword arguments, returns a tensor.
        name: The registered name, or the dotted path of what was never registered.
        kwargs: Keyword arguments for every call.

    Example:
        >>> FunctionActivation(torch.cos, "cosine")(torch.zeros(1))
        tensor([1.])
    """

    def __init__(self, function: Callable[..., Tensor], name: str, kwargs: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.function = function
        self.name = name
        self.kwargs = dict(kwargs or {})

    def forward(self, x: Tensor) -> Tensor:
        """Call the function."""
        return self.function(x, **self.kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy with the same function, by which the row is known."""
        memo[id(self.function)] = self.function
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    def extra_repr(self) -> str:
        """Return ``name, keyword=value, ...`` for ``repr``."""
        return ", ".join([self.name, *(f"{key}={value!r}" for key, value in self.kwargs.items())])


@dataclass(frozen=True)
class ModuleForm:
    """A module class that is this activation."""

    type: type[nn.Module]  # a subclass may compute something else and does not count
    # From an instance to the arguments of its spec. ``None``: its attributes of the names that its constructor has.
    read: ReadArguments | None = None
    # From an instance to the arguments of ``function`` and ``derivative``: the parameters as they are now, which
    # training may have moved. ``None``: the same as those of the spec. How it is computed (``inplace``, ``memory``) is
    # left out in either case.
    live: ReadArguments | None = None
    # Whether its backward pass needs the input (that of ReLU, sigmoid and tanh the output): until then nobody
    # overwrites it.
    keeps_input: bool = False
    noted: bool = False  # whether its constructor notes what it is given, as that of a user's class does

    @functools.cached_property
    def keywords(self) -> tuple[str, ...]:
        """The keywords of its constructor that a spec may give."""
        return tuple(keywords_of(self.type))

    def arguments(self, module: nn.Module) -> dict[str, Any]:
        """Return the arguments of the spec of an instance; `SpecError` if they are not known."""
        if self.noted:
            return noted_arguments(module, self.keywords)
        return {name: getattr(module, name) for name in self.keywords} if self.read is None else self.read(module)

    def live_arguments(self, module: nn.Module) -> dict[str, Any]:
        """Return the arguments of the pure function for an instance; `SpecError` if they are not known."""
        if self.noted:
            arguments = present_arguments(module, self.keywords)
        else:
            arguments = self.arguments(module) if self.live is None else self.live(module)
        return {key: value for key, value in arguments.items() if key not in NOT_OF_THE_FUNCTION}


def opaque_spec(module: nn.Module) -> ActivationSpec:
    """Return the spec of a module that was never registered: it names the class, or the function of one."""
    if isinstance(module, FunctionActivation):
        return opaque(module.name, module.kwargs)
    return ActivationSpec(dotted_path(type(module)), opaque=True)


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
            `lit_gelu.activations.numerics.arguments`. ``None``: they are evaluated one by one.
        facts: What is stated of it, or a callable from the arguments to that.
        aliases: Other names.
        modules: The module classes that are this activation.
        functions: Functions that compute it, with the arguments of its spec behind the input.
        calls: Functions whose calls have other arguments than a spec, as that of ``F.prelu`` has the weight itself; by
            each a function from these to those of the spec.
        preset: If this name is another activation with given arguments, that spec.
        objects: Arguments that may be objects with no text form; with such a one the activation's spec is opaque.
        tried: Whether a spec's values are tried on torch's ``meta`` device when it is read: ``build`` only allocates.
        registered_by: Who registered it.
        onnx: What it becomes in an ONNX file: a recipe as text, `OnnxRecipes` for several lowerings, `OnnxCases` where
            its arguments decide; ``None`` leaves it to the exporter. Only `lit_gelu.export` reads it.
    """

    name: str
    build: Callable[..., nn.Module]
    function: Callable[..., Tensor] | None = None
    derivative: Callable[..., Tensor] | None = None
    joint: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor | None]] | None = None
    facts: ActivationFacts | Callable[..., ActivationFacts] = field(default_factory=ActivationFacts)
    aliases: tuple[str, ...] = ()
    modules: tuple[ModuleForm, ...] = ()
    functions: tuple[Callable[..., Any], ...] = ()
    calls: Mapping[Callable[..., Any], Callable[..., dict[str, Any]]] = field(default_factory=dict)
    preset: ActivationSpec | None = None
    objects: tuple[str, ...] = ()
    tried: bool = False
    registered_by: str = ""
    onnx: Any = None

    @functools.cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The keywords that a spec may give, with their defaults; ``device`` and ``dtype`` are not its matter."""
        if isinstance(self.build, FunctionBuilder):
            return keywords_of(self.build.function, first=1)  # behind the input
        fixed = {} if self.preset is None else self.preset.arguments
        return {name: parameter for name, parameter in keywords_of(self.build).items() if name not in fixed}

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # without what was worked out of them

    def resolved(self, arguments: dict[str, Any]) -> Resolved:
        """Return the canonical spec for given keyword arguments, and what builds it; opaque if no text can hold one."""
        if any(not isinstance(arguments[key], _PLAIN) for key in self.objects if key in arguments):
            return Resolved(opaque(dotted_path(self.build), arguments), lambda: self.build(**arguments))
        spec = self.canonical(arguments)
        canonical = dict(spec.kwargs)
        if self.tried and canonical:
            without_memory(self.name, self.build, canonical)
        return Resolved(spec, lambda: self.remember(self.build(**canonical), canonical))

    def canonical(self, arguments: dict[str, Any]) -> ActivationSpec:
        """Return the canonical spec for given keyword arguments: checked, and without those at their defaults."""
        # ``inplace`` is accepted by every activation, as in timm, so that one can stand for another; where there is no
        # in-place form it is dropped.
        accepted, kept = self.parameters, {}
        for key, value in ActivationSpec(self.name, tuple(arguments.items())).kwargs:
            if (parameter := accepted.get(key)) is None:
                if key == "inplace":
                    continue
                names = ", ".join(accepted) or "none"
                raise ArgumentError(f"{self.name!r} has no argument {shown(key)}. It accepts: {names}.")
            _check_type(self.name, parameter, value)
            if value != parameter.default:
                kept[key] = value
        required = [key for key, parameter in accepted.items() if parameter.default is inspect.Parameter.empty]
        if missing := [key for key in required if key not in arguments]:
            raise ArgumentError(f"{self.name!r} needs a value for: {', '.join(missing)}.")
        return ActivationSpec(self.name, tuple(kept.items()))

    def remember(self, module: nn.Module, arguments: dict[str, Any]) -> nn.Module:
        """Note what a module of this activation was built from, if its constructor does not; return the module."""
        form = self.form_of(module)
        return noted(module, arguments) if form and form.noted else module

    def facts_for(self, arguments: dict[str, Any]) -> ActivationFacts:
        """Return the stated facts for given arguments of the spec."""
        return self.facts(**arguments) if callable(self.facts) else self.facts

    def form_of(self, module: nn.Module) -> ModuleForm | None:
        """Return the form whose class is exactly the module's, ``None`` if it is not this activation."""
        return next((form for form in self.modules if form.type is type(module)), None)

    def live_arguments(self, module: nn.Module) -> dict[str, Any] | None:
        """Return the present arguments of the pure function; ``None`` if the module alone says what it computes."""
        if isinstance(module, FunctionActivation):
            return dict(module.kwargs)
        form = self.form_of(module)
        try:
            return None if form is None else form.live_arguments(module)
        except SpecError:
            return None


def entry_for(name: str, target: Any, aliases: tuple[str, ...], registered_by: str | None) -> ActivationEntry:
    """Make the row of a module class or of a plain function; anything else raises `SpecError`."""
    is_class = isinstance(target, type)
    if isinstance(target, nn.Module) or not callable(target) or (is_class and not issubclass(target, nn.Module)):
        raise SpecError(
            f"{name!r}: cannot register {target!r}. Give a torch.nn.Module class or a function from tensor to tensor."
        )
    if isinstance(target, functools.partial) and isinstance(called := unfolded(target)[0], type):
        raise SpecError(
            f"{name!r}: cannot register a functools.partial of the class {called.__qualname__}. Register the class and "
            "give its arguments in specs, or register a subclass with other defaults."
        )
    if registered_by is None:
        named = target if hasattr(target, "__qualname__") else type(target)  # such as that of a functools.partial
        registered_by = f"{named.__module__}.{named.__qualname__}"
    if is_class:
        form = ModuleForm(target, noted=True)
        return ActivationEntry(name, target, modules=(form,), aliases=aliases, registered_by=registered_by)
    builder = FunctionBuilder(target, ActivationSpec(name).name)
    return ActivationEntry(
        name, builder, function=target, functions=(target,), aliases=aliases, registered_by=registered_by
    )


def without_memory(name: str, build: Callable[..., nn.Module], arguments: dict[str, Any]) -> nn.Module:
    """Build a module on the meta device, so that a value that it refuses is refused when the spec is read."""
    try:
        with torch.device("meta"):
            return build(**arguments)
    except LitGeluError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # of torch's own modules
        raise ArgumentError(f"{name}({shown(arguments)}) cannot be built: {message_of(error)}.") from error


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
        raise ArgumentError(
            f"{name!r}: {parameter.name}={shown(value)} is not accepted; it must be {kind}, such as "
            f"{parameter.name}={default!r}."
        )
