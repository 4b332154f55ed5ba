"""One registered activation: how to build it, compute it, differentiate it, and recognise it."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, get_args, get_origin

from torch import Tensor, nn

from lit_gelu.activations.construction import NOT_IN_SPECS, ConstructionArguments, PresentArguments
from lit_gelu.activations.errors import ActivationArgumentError, ActivationSpecError, UnknownArgumentsError
from lit_gelu.activations.function_activation import FunctionActivation
from lit_gelu.activations.info import ActivationFacts
from lit_gelu.activations.numerics.moments import GaussianMoments
from lit_gelu.activations.spec import ActivationSpec
from lit_gelu.errors import shown

ReadArguments = Callable[[nn.Module], dict[str, Any]]

NOT_OF_THE_FUNCTION = frozenset({"inplace", "memory"})  # they change how a module computes, not what


@dataclass(frozen=True)
class ReadAttributes:
    """Reads a module's construction arguments from its attributes of the same names.

    Args:
        names: The attributes to read.

    Example:
        >>> ReadAttributes(("negative_slope",))(nn.LeakyReLU(0.2))
        {'negative_slope': 0.2}
    """

    names: tuple[str, ...]

    def __call__(self, module: nn.Module) -> dict[str, Any]:
        """Read them.

        Args:
            module: An instance of the class.

        Returns:
            The arguments by name.
        """
        return {name: getattr(module, name) for name in self.names}


@dataclass(frozen=True)
class ModuleForm:
    """A module class that is this activation.

    Args:
        type: The class; a subclass may compute something else and does not count.
        read: From an instance to the arguments of its spec; raises `UnknownArgumentsError` if they are not known.
        live: From an instance to the arguments of ``function`` and ``derivative``: the parameters as they are now,
            which training may have moved. ``None``: the same as ``read``. How it is computed (``inplace``,
            ``memory``) is left out in either case.
    """

    type: type[nn.Module]
    read: ReadArguments
    live: ReadArguments | None = None

    def live_arguments(self, module: nn.Module) -> dict[str, Any]:
        """Return the arguments of the pure function for this instance.

        Args:
            module: An instance of ``type``.

        Returns:
            Keyword arguments; numbers, strings or tensors.

        Raises:
            UnknownArgumentsError: If they cannot be told: then only the module itself says what it computes.
        """
        arguments = (self.live or self.read)(module)
        return {key: value for key, value in arguments.items() if key not in NOT_OF_THE_FUNCTION}


@dataclass(frozen=True)
class FunctionBuilder:
    """Builds the module of a plain function; a class, so that a registry can be pickled."""

    function: Callable[..., Tensor]
    name: str

    def __call__(self, **kwargs: Any) -> nn.Module:
        """Build it.

        Args:
            **kwargs: Arguments of the function after the first.

        Returns:
            The module.
        """
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
        preset: If this name is another activation with given arguments, that spec.
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
    preset: ActivationSpec | None = None
    objects: tuple[str, ...] = ()
    tried: bool = False
    registered_by: str = ""
    onnx: Any = None

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The keywords that a spec may give, with their defaults; ``device`` and ``dtype`` are not its matter."""
        skip_first = isinstance(self.build, FunctionBuilder)
        target = self.build.function if isinstance(self.build, FunctionBuilder) else self.build
        try:
            signature = inspect.signature(target)
        except ValueError:  # a function written in C that does not tell
            return {}
        parameters = list(signature.parameters.values())[int(skip_first) :]
        keyword_kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return {p.name: p for p in parameters if p.kind in keyword_kinds and p.name not in NOT_IN_SPECS}

    def holds_object(self, arguments: dict[str, Any]) -> bool:
        """Say whether an argument is an object that no text can stand for.

        Args:
            arguments: Keyword arguments.

        Returns:
            Whether one of `objects` is.
        """
        plain = (str, int, float, tuple, list, type(None))
        return any(key in arguments and not isinstance(arguments[key], plain) for key in self.objects)

    def facts_for(self, arguments: dict[str, Any]) -> ActivationFacts:
        """Return the stated facts for given arguments.

        Args:
            arguments: The arguments of the spec.

        Returns:
            The facts.
        """
        return self.facts(**arguments) if callable(self.facts) else self.facts

    def form_of(self, module: nn.Module) -> ModuleForm | None:
        """Return the form that a module has, ``None`` if it is not this activation.

        Args:
            module: Any module.

        Returns:
            The form whose class is exactly the module's.
        """
        return next((form for form in self.modules if form.type is type(module)), None)

    def live_arguments(self, module: nn.Module) -> dict[str, Any] | None:
        """Return the arguments of the pure function for a module of this activation.

        Args:
            module: The module.

        Returns:
            Keyword arguments; ``None`` if the module alone says what it computes.
        """
        if isinstance(module, FunctionActivation):
            return dict(module.kwargs)
        form = self.form_of(module)
        try:
            return None if form is None else form.live_arguments(module)
        except UnknownArgumentsError:
            return None

    def canonical_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Check keyword arguments against the signature and drop those that equal their defaults.

        Args:
            arguments: What a spec gives. ``inplace`` is accepted by every activation, as in timm, so that one can
                stand for another; where there is no in-place form it is dropped.

        Returns:
            The arguments that differ from their defaults.

        Raises:
            ActivationArgumentError: If a keyword does not exist, is missing, or its value has the wrong type.
        """
        accepted = self.parameters
        if "inplace" not in accepted:
            arguments = {key: value for key, value in arguments.items() if key != "inplace"}
        for key, value in arguments.items():
            if key not in accepted:
                known = ", ".join(accepted) or "none"
                raise ActivationArgumentError(f"{self.name!r} has no argument {shown(key)}. It accepts: {known}.")
            _check_type(self.name, accepted[key], value)
        missing = [key for key, p in accepted.items() if p.default is inspect.Parameter.empty and key not in arguments]
        if missing:
            raise ActivationArgumentError(f"{self.name!r} needs a value for: {', '.join(missing)}.")
        return {key: value for key, value in arguments.items() if value != accepted[key].default}


def entry_for(name: str, target: Any, aliases: tuple[str, ...], registered_by: str) -> ActivationEntry:
    """Make the row of a module class or of a plain function.

    Args:
        name: Its name.
        target: The class or function.
        aliases: Other names.
        registered_by: Who registers it.

    Returns:
        The row.

    Raises:
        ActivationSpecError: If it is neither a module class nor a function, or an instance where a class is wanted.

    Example:
        >>> entry_for("softsign", nn.Softsign, (), "me").modules[0].type.__name__
        'Softsign'
    """
    if isinstance(target, nn.Module) or not callable(target):
        raise ActivationSpecError(
            f"{name!r}: cannot register {target!r}. Give a torch.nn.Module class or a function from tensor to tensor."
        )
    if isinstance(target, type) and issubclass(target, nn.Module):
        entry = ActivationEntry(name, target, aliases=aliases, registered_by=registered_by)
        names = tuple(entry.parameters)
        form = ModuleForm(target, ConstructionArguments(names), live=PresentArguments(names))
        return replace(entry, modules=(form,))
    builder = FunctionBuilder(target, ActivationSpec(name).name)
    return ActivationEntry(
        name, builder, function=target, functions=((target, ()),), aliases=aliases, registered_by=registered_by
    )


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
