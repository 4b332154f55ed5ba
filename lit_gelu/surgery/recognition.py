"""What counts as an activation: modules, functions of torch and operators, and from each to its spec."""

import copy
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.naming.forms import opaque_spec
from lit_gelu.errors import LitGeluError

Arguments = Mapping[str, Any]
_SELU_SCALE = 1.0507009873554805


def _elu(given: Arguments) -> ActivationSpec | None:
    if math.isclose(given["scale"], _SELU_SCALE, rel_tol=1e-6):
        return ActivationSpec("selu")
    if given["scale"] == 1:
        return ActivationSpec.of("elu", alpha=float(given["alpha"]))
    return None


def _hard_tanh(given: Arguments) -> ActivationSpec | None:
    return ActivationSpec("relu6") if (given["min_val"], given["max_val"]) == (0, 6) else None


def _fused(given: Arguments) -> ActivationSpec | None:
    return ActivationSpec("gelu" if given["use_gelu"] else "relu")


def _softmax(given: Arguments) -> ActivationSpec | None:
    return ActivationSpec("aten.softmax", (("dim", given["dim"]),), opaque=True)


def _prelu(given: Arguments) -> ActivationSpec | None:
    return ActivationSpec.of("prelu", num_parameters=given["weight"].numel())


def _plain(name: str, *arguments: str) -> Callable[[Arguments], ActivationSpec | None]:
    return lambda given: ActivationSpec.of(name, **{key: given[key] for key in arguments})


_SPECS: Mapping[str, Callable[[Arguments], ActivationSpec | None]] = {
    "_addmm_activation": _fused,
    "_prelu_kernel": _plain("prelu"),
    "_safe_softmax": _softmax,
    "_softmax": _softmax,
    "_transformer_encoder_layer_fwd": _fused,
    "celu": lambda given: ActivationSpec.of("celu", alpha=float(given["alpha"])),
    "elu": _elu,
    "gelu": _plain("gelu", "approximate"),
    "hardsigmoid": _plain("hard_sigmoid"),
    "hardswish": _plain("hard_swish"),
    "hardtanh": _hard_tanh,
    "leaky_relu": lambda given: ActivationSpec.of("leaky_relu", negative_slope=float(given["negative_slope"])),
    "log_sigmoid": _plain("log_sigmoid"),
    "log_sigmoid_forward": _plain("log_sigmoid"),
    "mish": _plain("mish"),
    "prelu": _prelu,
    "relu": _plain("relu"),
    "relu6": _plain("relu6"),
    "selu": _plain("selu"),
    "sigmoid": _plain("sigmoid"),
    "silu": _plain("silu"),
    "softmax": _softmax,
    "softplus": lambda given: ActivationSpec.of(
        "softplus", beta=float(given["beta"]), threshold=float(given["threshold"])
    ),
    "tanh": _plain("tanh"),
}

# Of several inputs, results or steps: no call of another activation could stand there.
_NO_SITES = frozenset({"_addmm_activation", "_transformer_encoder_layer_fwd", "log_sigmoid_forward", "_prelu_kernel"})

# These hide sigmoids and tanhs, or ReLUs, that are never called by themselves.
RECURRENT = frozenset({
    "_cudnn_rnn",
    "_thnn_fused_gru_cell",
    "_thnn_fused_lstm_cell",
    "miopen_rnn",
    "mkldnn_rnn_layer",
})


def kernel_name(operator: Any) -> str:
    """Return the name of an operator of torch, without its overload and the underscore of those in place.

    Args:
        operator: An ``torch._ops.OpOverload``.

    Returns:
        The name, such as ``"relu"``; empty if it is not one of ``aten``'s.

    Example:
        >>> import torch
        >>> kernel_name(torch.ops.aten.relu_.default)
        'relu'
    """
    namespace, _, name = str(operator.name()).partition("::")
    return name.partition(".")[0].rstrip("_") if namespace == "aten" else ""


def kernel_spec(
    operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], registry: ActivationRegistry
) -> ActivationSpec | None:
    """Return what an operator computes, if it is an activation.

    Args:
        operator: A ``torch._ops.OpOverload``.
        args: Its arguments.
        kwargs: Its keyword arguments.
        registry: Where the names are looked up.

    Returns:
        The canonical spec, ``None`` if it is none.

    Example:
        >>> import torch
        >>> from lit_gelu.activations import registry
        >>> str(kernel_spec(torch.ops.aten.gelu.default, (torch.ones(1),), {"approximate": "tanh"}, registry))
        "gelu(approximate='tanh')"
    """
    read = _SPECS.get(kernel_name(operator))
    if read is None:
        return None
    schema = operator._schema.arguments
    given = {row.name: row.default_value for row in schema if row.has_default_value()}
    spec = read(given | {row.name: value for row, value in zip(schema, args, strict=False)} | dict(kwargs))
    if spec is None or spec.opaque:
        return spec
    try:
        return registry.resolve(spec)
    except LitGeluError:
        return None  # a registry without it


def operator_spec(
    operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], registry: ActivationRegistry
) -> ActivationSpec | None:
    """Return what a call such as ``torch.ops.aten.gelu(x)`` computes, if it is an activation of its first argument.

    Args:
        operator: Anything that is called.
        args: Its arguments.
        kwargs: Its keyword arguments.
        registry: Where the names are looked up.

    Returns:
        The canonical spec, with ``inplace=True`` if it overwrites its input; ``None`` if it is none.

    Example:
        >>> import torch
        >>> from lit_gelu.activations import registry
        >>> str(operator_spec(torch.ops.aten.hardtanh, (torch.ones(1), 0, 6), {}, registry))
        'relu6'
    """
    untyped: Any = operator  # torch declares no types of these methods
    if isinstance(operator, OpOverloadPacket):
        untyped = getattr(operator, untyped.overloads()[0])
    if not isinstance(untyped, OpOverload) or kernel_name(untyped) in _NO_SITES or "out" in kwargs:
        return None
    spec = kernel_spec(untyped, args, kwargs, registry)
    overwrites = str(untyped._schema.name).partition(".")[0].endswith("_")
    return spec if spec is None or spec.opaque or not overwrites else registry.resolve(spec, inplace=True)


_PLACES = (F, torch, Tensor, torch._C._nn)
_SAME = {"sigmoid": (torch.special.expit,)}  # under another name
_PARAMETRIC = (F.prelu, torch.prelu)  # the registry has no function of it: its parameter is a tensor
_SOFTMAX = (F.softmax, torch.softmax, torch.special.softmax)
_INPUTS = ("input", "x", "self")


@dataclass(frozen=True)
class KnownFunction:
    """A function of torch that is an activation.

    Args:
        name: The canonical name of the activation; ``"softmax"``, which is none, is known as a gate.
        function: The function, or the tensor's method.
        preset: Arguments that the function stands for.
        inplace: Whether it overwrites its input whatever its arguments.
        gate: Whether it usually gates another value.
        spec: What it computes with the arguments of one call, where nothing but these tells.
    """

    name: str
    function: Callable[..., Any]
    preset: tuple[tuple[str, Any], ...] = ()
    inplace: bool = False
    gate: bool = False
    spec: ActivationSpec | None = None

    @property
    def path(self) -> str:
        """Where the function is found, such as ``torch.nn.functional.gelu`` or ``torch.Tensor.relu``."""
        name = str(getattr(self.function, "__name__", self.name))
        for place in _PLACES:
            if getattr(place, name, None) is self.function:
                return f"{'torch.Tensor' if place is Tensor else place.__name__}.{name}"
        return f"{getattr(self.function, '__module__', 'torch')}.{name}"

    def arguments_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
        """Return the arguments of one call by name, without the input.

        Args:
            args: As called; the first is the input, unless it is given by name.
            kwargs: As called.
            names: Names of what may follow the input by position.

        Returns:
            The arguments, defaults of the function not filled in.
        """
        given = {key: value for key, value in kwargs.items() if key not in {*_INPUTS, "_stacklevel"}}
        positional = args if any(key in kwargs for key in _INPUTS) else args[1:]
        found = dict(self.preset) | dict(zip(names, positional, strict=False)) | given
        return found | ({"inplace": True} if self.inplace else {})


class FunctionTable:
    """The functions of torch that a registry's activations are the same as, under all names that torch has for them.

    The rows of the registry name functions (``F.relu``, ``torch.relu``, ...); torch has the same as tensors' methods
    and with an underscore for the one that overwrites its input, which are found by their name.

    Args:
        registry: Says what an activation is.

    Example:
        >>> from lit_gelu.activations import registry
        >>> table = FunctionTable(registry)
        >>> table.find(Tensor.relu_).name, table.find(torch.cos)
        ('relu', None)
    """

    def __init__(self, registry: ActivationRegistry) -> None:
        self._registry = registry
        self._known: dict[Any, KnownFunction] = {}
        for entry in registry.entries():
            facts = entry.facts_for(entry.preset.arguments if entry.preset else {})
            if facts.halves:
                continue  # no elementwise activation could stand there
            for function, preset in entry.functions:
                for form in _forms(function):
                    self._add(KnownFunction(entry.name, form, preset, _is_inplace(form), facts.gate))
        for function in _PARAMETRIC:
            if "prelu" in registry:
                for form in _forms(function):
                    self._add(KnownFunction("prelu", form))
        for function in _SOFTMAX:
            for form in _forms(function):
                self._add(KnownFunction("softmax", form, gate=True))

    def _add(self, known: KnownFunction) -> None:
        self._known.setdefault(known.function, known)

    def find(self, function: Any) -> KnownFunction | None:
        """Return what is known of a function.

        Args:
            function: Any object.

        Returns:
            Its row, ``None`` if it is no activation.
        """
        try:
            return self._known.get(function)
        except TypeError:  # it has no hash
            return None

    def find_call(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> KnownFunction | None:
        """Return what is known of a function as it is called.

        Beside what `find` knows: ``F.hardtanh(x, 0, 6)`` is ``relu6``, and operators such as ``torch.ops.aten.gelu``.

        Args:
            function: Any object.
            args: Its arguments.
            kwargs: Its keyword arguments.

        Returns:
            Its row, ``None`` if it is no activation.
        """
        known = self.find(function)
        if known is not None:
            return known
        spec = self._clipped(function, args, kwargs) or operator_spec(function, args, kwargs, self._registry)
        if spec is None:
            return None
        gate = spec.opaque or self._registry.entry(spec.name).facts_for(spec.arguments).gate
        return KnownFunction("softmax" if spec.opaque else spec.name, function, gate=gate, spec=spec)

    def _clipped(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ActivationSpec | None:
        """Return ``relu6`` if a call of ``F.hardtanh`` is that."""
        if (function is not F.hardtanh and function is not F.hardtanh_) or "relu6" not in self._registry:
            return None
        given = inspect.signature(F.hardtanh).bind(*args, **kwargs)
        given.apply_defaults()
        if (given.arguments["min_val"], given.arguments["max_val"]) != (0, 6):
            return None
        overwrites = function is F.hardtanh_ or given.arguments["inplace"]
        return self._registry.resolve("relu6", **({"inplace": True} if overwrites else {}))

    def find_held(self, value: Any) -> tuple[KnownFunction, dict[str, Any]] | None:
        """Return what is known of a function that a module holds as an attribute.

        Args:
            value: The attribute: a function, or a ``functools.partial`` of one with keyword arguments.

        Returns:
            The row and the arguments that are bound to it, ``None`` if it is no activation.
        """
        if isinstance(value, functools.partial):
            known = None if value.args else self.find(value.func)
            return None if known is None else (known, dict(value.keywords))
        known = self.find(value)
        return None if known is None else (known, {})

    def named(self, name: str) -> tuple[Callable[..., Any], ...]:
        """Return all functions that are one activation.

        Args:
            name: Its canonical name.

        Returns:
            The functions.
        """
        return tuple(known.function for known in self._known.values() if known.name == name)

    def spec(self, known: KnownFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ActivationSpec:
        """Return the spec of one call.

        Args:
            known: What is called.
            args: Its arguments, the input first.
            kwargs: Its keyword arguments.

        Returns:
            The canonical spec; an opaque one, which names the function, for softmax and for arguments that are no plain
            data.

        Example:
            >>> from lit_gelu.activations import registry
            >>> table = FunctionTable(registry)
            >>> str(table.spec(table.find(F.leaky_relu), (torch.zeros(1), 0.2), {}))
            'leaky_relu(negative_slope=0.2)'
        """
        if known.spec is not None:
            return known.spec
        arguments = known.arguments_of(args, kwargs, self._names(known))
        if known.name == "prelu" and "weight" in arguments:
            weight = arguments.pop("weight")
            arguments |= {"num_parameters": weight.numel() if isinstance(weight, Tensor) else 1}
        try:
            if known.name != "softmax":
                return self._registry.resolve(ActivationSpec.of(known.name, **arguments))
        except LitGeluError:
            pass  # a tensor as an argument, or one that the activation's module does not have: not to be rebuilt
        plain = {key: value for key, value in arguments.items() if isinstance(value, (bool, int, float, str))}
        return ActivationSpec(known.path, tuple(plain.items()), opaque=True)

    def _names(self, known: KnownFunction) -> tuple[str, ...]:
        """Return the names of what may follow the input by position."""
        if known.name == "softmax":
            return ("dim", "dtype") if known.function is not F.softmax else ("dim",)
        if known.name == "prelu":
            return ("weight",)
        if inspect.isfunction(known.function):
            return tuple(inspect.signature(known.function).parameters)[1:]
        return tuple(name for name in self._registry.entry(known.name).parameters if name != "inplace")


@functools.lru_cache(maxsize=256)
def _forms(function: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """Return a function with the others that torch has under its name, with and without a trailing underscore."""
    if str(getattr(function, "__module__", "")).partition(".")[0] != "torch":
        return (function,)
    name = function.__name__.rstrip("_")
    forms = [function, *_SAME.get(name, ())]
    for place in _PLACES:
        forms += [form for key in (name, f"{name}_") if callable(form := getattr(place, key, None))]
    return tuple({id(form): form for form in forms}.values())


def _is_inplace(function: Callable[..., Any]) -> bool:
    return str(getattr(function, "__name__", "")).endswith("_")


_ARGUMENTS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "clipped_gelu": lambda module: {"min": float(module.min), "max": float(module.max)},
    "prelu": lambda module: {"num_parameters": module.num_parameters},
}
_OPAQUE = frozenset({"transformers.activations.XIELUActivation"})  # no spec can hold its parameters

# From the class's path to a name of the registry; the libraries themselves are not imported.
_NAMES: Mapping[str, str] = {
    **{
        f"transformers.activations.{cls}": name
        for cls, name in {
            "AccurateGELUActivation": "gelu_tanh",
            "ClippedGELUActivation": "clipped_gelu",
            "FastGELUActivation": "gelu_tanh",
            "GELUActivation": "gelu",
            "GELUTanh": "gelu_tanh",
            "LaplaceActivation": "mega_laplace",
            "LinearActivation": "identity",
            "MishActivation": "mish",
            "NewGELUActivation": "gelu_tanh",
            "QuickGELUActivation": "gelu_sigmoid",
            "ReLUSquaredActivation": "relu2",
            "SiLUActivation": "silu",
            "SqrtSoftplusActivation": "sqrt_softplus",
        }.items()
    },
    **{
        f"timm.layers.activations.{cls}": name
        for cls, name in {
            "GELU": "gelu",
            "GELUTanh": "gelu_tanh",
            "HardMish": "hard_mish",
            "HardSigmoid": "hard_sigmoid",
            "HardSwish": "hard_swish",
            "Mish": "mish",
            "PReLU": "prelu",
            "QuickGELU": "gelu_sigmoid",
            "Sigmoid": "sigmoid",
            "Swish": "silu",
            "Tanh": "tanh",
        }.items()
    },
    **{
        f"timm.layers.activations_me.{cls}": name
        for cls, name in {
            "HardMishMe": "hard_mish",
            "HardSigmoidMe": "hard_sigmoid",
            "HardSwishMe": "hard_swish",
            "MishMe": "mish",
            "SwishMe": "silu",
        }.items()
    },
    "clip.model.QuickGELU": "gelu_sigmoid",
    "open_clip.transformer.QuickGELU": "gelu_sigmoid",
}


def foreign_spec(module: nn.Module, registry: ActivationRegistry) -> ActivationSpec | None:
    """Return the spec of an activation module of transformers, timm or CLIP.

    What it computes is the spec's function, to the rounding of another order of operations; that of ``transformers``'
    XIELU is opaque.

    Args:
        module: Any module.
        registry: Where the names are looked up.

    Returns:
        The canonical spec, ``None`` if it is no such module, or the registry lacks the activation.
    """
    path = f"{type(module).__module__}.{type(module).__qualname__}"
    if path in _OPAQUE:
        return opaque_spec(module)
    name = _NAMES.get(path)
    if name is None or name not in registry:
        return None
    read = _ARGUMENTS.get(name)
    return registry.resolve(ActivationSpec.of(name, **(read(module) if read else {})))


Module = TypeVar("Module", bound=nn.Module)


def hidden_modules(model: nn.Module) -> set[int]:
    """Return the modules that nobody gets who asks for them by name.

    Args:
        model: Any module.

    Returns:
        The ``id`` of every module that is hidden by an attribute wherever it stands.

    Example:
        >>> decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8, activation=nn.GELU()), 1)
        >>> hidden_modules(decoder) == {id(decoder.layers[0]._modules["activation"])}
        True
    """
    hidden: set[int] = set()
    seen = {id(model)}
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is not None:
                (hidden if name in vars(parent) else seen).add(id(child))
    return hidden - seen


def faithful_copy(model: Module, memo: dict[int, Any] | None = None) -> Module:
    """Return a deep copy in which the same children are hidden as in the original, and no others.

    Args:
        model: Any module.
        memo: As ``copy.deepcopy`` takes it.

    Returns:
        The copy.

    Example:
        >>> layer = nn.TransformerDecoderLayer(4, 2, 8, activation=nn.GELU())
        >>> copy.deepcopy(layer).activation.__name__, faithful_copy(layer).activation
        ('relu', GELU(approximate='none'))
    """
    memo = {} if memo is None else memo
    twin = copy.deepcopy(model, memo)
    for module in model.modules():
        copied = memo.get(id(module))
        if type(copied) is type(module):
            for name in copied._modules.keys() & (vars(copied).keys() - vars(module).keys()):
                del vars(copied)[name]
    return twin
