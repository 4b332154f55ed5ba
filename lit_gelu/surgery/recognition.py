"""What counts as an activation: torch's operators and functions, and modules; and from each of them to its spec."""

import copy
import functools
import inspect
import math
import operator
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.modules import FunctionActivation
from lit_gelu.activations.naming.entry import ActivationEntry
from lit_gelu.activations.naming.forms import CallForm, opaque_spec
from lit_gelu.errors import LitGeluError

Arguments = Mapping[str, Any]
_SELU_SCALE = 1.0507009873554805


def _elu(arguments: Arguments) -> ActivationSpec | None:
    if math.isclose(arguments["scale"], _SELU_SCALE, rel_tol=1e-6):
        return ActivationSpec("selu")
    if arguments["scale"] == 1:
        return ActivationSpec.of("elu", alpha=float(arguments["alpha"]))
    return None


def _hard_tanh(arguments: Arguments) -> ActivationSpec | None:
    return ActivationSpec("relu6") if (arguments["min_val"], arguments["max_val"]) == (0, 6) else None


def _fused(arguments: Arguments) -> ActivationSpec | None:
    return ActivationSpec("gelu" if arguments["use_gelu"] else "relu")


def _softmax(arguments: Arguments) -> ActivationSpec | None:
    return ActivationSpec("aten.softmax", (("dim", arguments["dim"]),), opaque=True)


def _prelu(arguments: Arguments) -> ActivationSpec | None:
    return ActivationSpec.of("prelu", num_parameters=arguments["weight"].numel())


def _plain(name: str, *arguments: str) -> Callable[[Arguments], ActivationSpec | None]:
    return lambda call: ActivationSpec.of(name, **{key: call[key] for key in arguments})


_SPECS: Mapping[str, Callable[[Arguments], ActivationSpec | None]] = {
    "_addmm_activation": _fused,
    "_prelu_kernel": _plain("prelu"),
    "_safe_softmax": _softmax,
    "_softmax": _softmax,
    "_transformer_encoder_layer_fwd": _fused,
    "celu": lambda arguments: ActivationSpec.of("celu", alpha=float(arguments["alpha"])),
    "elu": _elu,
    "gelu": _plain("gelu", "approximate"),
    "hardsigmoid": _plain("hard_sigmoid"),
    "hardswish": _plain("hard_swish"),
    "hardtanh": _hard_tanh,
    "leaky_relu": lambda arguments: ActivationSpec.of("leaky_relu", negative_slope=float(arguments["negative_slope"])),
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
    "softplus": lambda arguments: ActivationSpec.of(
        "softplus", beta=float(arguments["beta"]), threshold=float(arguments["threshold"])
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


def kernel_name(overload: Any) -> str:
    """Return the name of an ``OpOverload`` of ``aten``, without overload and underscore; empty for other libraries'."""
    namespace, _, name = str(overload.name()).partition("::")
    return name.partition(".")[0].rstrip("_") if namespace == "aten" else ""


def kernel_spec(
    overload: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], registry: ActivationRegistry
) -> ActivationSpec | None:
    """Return the canonical spec of what an ``OpOverload`` computes, ``None`` if it is no registered activation."""
    read = _SPECS.get(kernel_name(overload))
    if read is None:
        return None
    schema = overload._schema.arguments
    arguments = {row.name: row.default_value for row in schema if row.has_default_value()}
    spec = read(arguments | {row.name: value for row, value in zip(schema, args, strict=False)} | dict(kwargs))
    return spec if spec is None or spec.opaque else _resolved(spec, registry)


def _resolved(spec: ActivationSpec, registry: ActivationRegistry, **more: Any) -> ActivationSpec | None:
    """Return a spec in canonical form, ``None`` where a registry lacks the activation."""
    try:
        return registry.resolve(spec, **more)
    except LitGeluError:
        return None


def _operator_spec(
    called: OpOverload | OpOverloadPacket,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    registry: ActivationRegistry,
) -> ActivationSpec | None:
    """Return what a call such as ``torch.ops.aten.gelu(x)`` computes, if it is an activation of its first argument."""
    untyped: Any = called  # torch declares no types of these methods
    if isinstance(called, OpOverloadPacket):
        untyped = getattr(called, untyped.overloads()[0])
    if kernel_name(untyped) in _NO_SITES or "out" in kwargs:
        return None
    spec = kernel_spec(untyped, args, kwargs, registry)
    overwrites = str(untyped._schema.name).partition(".")[0].endswith("_")
    return spec if spec is None or spec.opaque or not overwrites else registry.resolve(spec, inplace=True)


def is_softmax(spec: ActivationSpec) -> bool:
    """Say whether a spec is softmax: no activation, and swapped only where it is named in full."""
    return spec.opaque and spec.name.lower().endswith("softmax")


def is_gate(spec: ActivationSpec, registry: ActivationRegistry) -> bool:
    """Say whether an activation, softmax among them, which is not registered, usually gates another value."""
    if spec.opaque:
        return is_softmax(spec)
    return registry.entry(spec.name).facts_for(spec.arguments).gate


_PLACES = (F, torch, Tensor, torch._C._nn)
_SAME = {"sigmoid": (torch.special.expit,)}  # under another name
_SOFTMAX = (F.softmax, torch.softmax, torch.special.softmax)
_INPUTS = ("input", "x", "self")


@dataclass(frozen=True)
class KnownFunction:
    """A function of torch that is an activation."""

    name: str  # the canonical name of the activation; ``"softmax"``, which is none, is known as a gate
    function: Callable[..., Any]  # the function, or the tensor's method
    preset: tuple[tuple[str, Any], ...] = ()  # arguments that the function stands for
    gate: bool = False  # whether it usually gates another value
    spec: ActivationSpec | None = None  # what it computes with the arguments of one call, where nothing but these tells
    call: CallForm | None = None  # how its row reads a call of it, where a call's arguments are not those of a spec

    @property
    def path(self) -> str:
        """Where the function is found, such as ``torch.nn.functional.gelu`` or ``torch.Tensor.relu``."""
        name = str(getattr(self.function, "__name__", self.name))
        for place in _PLACES:
            if getattr(place, name, None) is self.function:
                return f"{'torch.Tensor' if place is Tensor else place.__name__}.{name}"
        return f"{getattr(self.function, '__module__', 'torch')}.{name}"

    def arguments_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
        """Return the arguments of a call by name, without the input; ``names`` are those of what may follow it."""
        by_name = {key: value for key, value in kwargs.items() if key not in {*_INPUTS, "_stacklevel"}}
        positional = args if any(key in kwargs for key in _INPUTS) else args[1:]
        arguments = dict(self.preset) | dict(zip(names, positional, strict=False)) | by_name
        overwrites = str(getattr(self.function, "__name__", "")).endswith("_")
        return arguments | ({"inplace": True} if overwrites else {})


class FunctionTable:
    """The functions of torch that a registry's activations are the same as, under all names that torch has for them."""

    # The rows of the registry name functions (``F.relu``, ``torch.relu``, ...); torch has the same as tensors' methods
    # and with an underscore for the one that overwrites its input, which are found by their name.

    def __init__(self, registry: ActivationRegistry) -> None:
        self._registry = registry
        self._rows = _rows_of_functions(registry)
        self._met: dict[Any, KnownFunction | None] = {}

    def find(self, function: Any) -> KnownFunction | None:
        """Return what is known of a function, ``None`` if an object is no activation."""
        try:
            row = self._rows.get(function)
        except TypeError:  # it has no hash
            return None
        if row is not None and function not in self._met:
            self._met[function] = row.known_function()
        return self._met.get(function) if row is not None else None

    def find_call(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> KnownFunction | None:
        """Return what is known of a function as it is called: also ``F.hardtanh(x, 0, 6)``, and torch's operators."""
        if kwargs.get("out") is not None:  # it writes to a tensor of the model's, which no module would
            return None
        row = self.find(function)
        if row is not None:
            return row
        if isinstance(function, OpOverload | OpOverloadPacket):
            spec = _operator_spec(function, args, kwargs, self._registry)
        elif function is F.hardtanh or function is F.hardtanh_:
            spec = self._clipped(function, args, kwargs)
        else:
            return None
        if spec is None:
            return None
        gate = is_gate(spec, self._registry)
        return KnownFunction("softmax" if spec.opaque else spec.name, function, gate=gate, spec=spec)

    def _clipped(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ActivationSpec | None:
        """Return ``relu6`` if a call of ``F.hardtanh`` is that."""
        bound = inspect.signature(F.hardtanh).bind(*args, **kwargs)
        bound.apply_defaults()
        overwrites = function is F.hardtanh_ or bound.arguments["inplace"]
        spec = _hard_tanh(bound.arguments)
        return None if spec is None else _resolved(spec, self._registry, **({"inplace": True} if overwrites else {}))

    def find_held(self, value: Any) -> tuple[KnownFunction, dict[str, Any]] | None:
        """Return what is known of an attribute's value, a function or a partial, and the arguments bound to it."""
        partial = isinstance(value, functools.partial) and not value.args
        row = self.find(value.func if partial else value)
        return None if row is None else (row, dict(value.keywords) if partial else {})

    def named(self, name: str) -> tuple[Callable[..., Any], ...]:
        """Return all functions that are the activation of a canonical name."""
        return tuple(form for form, row in self._rows.items() if row.name == name and row.known_function() is not None)

    def spec(self, function: KnownFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ActivationSpec:
        """Return the canonical spec of one call; for softmax and arguments that are no plain data an opaque one."""
        if function.spec is not None:
            return function.spec
        arguments = function.arguments_of(args, kwargs, self._names(function))
        try:
            if function.call is not None:
                arguments = function.call.read(arguments)
            if function.name != "softmax":
                return self._registry.resolve(ActivationSpec.of(function.name, **arguments))
        except LitGeluError:
            pass  # a tensor as an argument, or one that the activation's module does not have: not to be rebuilt
        plain = {key: value for key, value in arguments.items() if isinstance(value, (bool, int, float, str))}
        return ActivationSpec(function.path, tuple(plain.items()), opaque=True)

    def _names(self, function: KnownFunction) -> tuple[str, ...]:
        """Return the names of what may follow the input by position."""
        if function.name == "softmax":
            return ("dim", "dtype") if function.function is not F.softmax else ("dim",)
        if function.call is not None:
            return function.call.parameters
        if inspect.isfunction(function.function):
            return tuple(inspect.signature(function.function).parameters)[1:]
        return tuple(name for name in self._registry.entry(function.name).parameters if name != "inplace")


@dataclass(frozen=True, slots=True)
class _FunctionRow:
    """A function's row in the registry; what is stated there is asked once the function is met."""

    name: str
    form: Callable[..., Any]
    preset: tuple[tuple[str, Any], ...] = ()
    entry: ActivationEntry | None = None
    call: CallForm | None = None

    def known_function(self) -> KnownFunction | None:
        """Return what is known of the function, ``None`` for one that halves: no other could stand for GLU."""
        if self.entry is None:
            return KnownFunction(self.name, self.form, gate=self.name == "softmax")
        facts = self.entry.facts_for(self.entry.preset.arguments if self.entry.preset else {})
        return None if facts.halves else KnownFunction(self.name, self.form, self.preset, facts.gate, call=self.call)


_Rows = dict[Any, _FunctionRow]
_Table = tuple[list[ActivationEntry], _Rows]
_TABLES: weakref.WeakKeyDictionary[ActivationRegistry, _Table] = weakref.WeakKeyDictionary()


def _rows_of_functions(registry: ActivationRegistry) -> _Rows:
    """Return what a registry's rows say of functions; made anew only when the rows are others."""
    entries = registry.entries()  # of this context: a scope has more
    before, rows = _TABLES.get(registry, ((), {}))
    if len(before) == len(entries) > 0 and all(map(operator.is_, before, entries)):
        return rows
    rows = {}
    for entry in entries:
        for function, preset in entry.functions:
            for form in _forms(function):
                rows.setdefault(form, _FunctionRow(entry.name, form, preset, entry))
        for call in entry.calls:
            for form in _forms(call.function):
                rows.setdefault(form, _FunctionRow(entry.name, form, entry=entry, call=call))
    for function in _SOFTMAX:
        for form in _forms(function):
            rows.setdefault(form, _FunctionRow("softmax", form))
    _TABLES[registry] = entries, rows
    return rows


@functools.lru_cache(maxsize=256)
def _forms(function: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """Return a function with the others that torch has under its name, with and without a trailing underscore."""
    if str(getattr(function, "__module__", "")).partition(".")[0] != "torch":
        return (function,)
    name = function.__name__.rstrip("_")
    forms = [function, *_SAME.get(name, ())]
    for place in _PLACES:
        forms += filter(callable, (getattr(place, name, None), getattr(place, f"{name}_", None)))
    return tuple(forms)


def activation_spec(module: nn.Module, registry: ActivationRegistry) -> ActivationSpec | None:
    """Return the spec of a module that is an activation site, softmax among them; ``None`` if it is none."""
    if type(module) is nn.Identity:
        return None
    if type(module) is nn.Softmax:
        dim = () if module.dim is None else (("dim", module.dim),)
        return ActivationSpec("torch.nn.modules.activation.Softmax", dim, opaque=True)
    entry = registry.entry_of(module)
    if entry is None:
        return registry.spec_of(module) if isinstance(module, FunctionActivation) else foreign_spec(module, registry)
    spec = registry.spec_of(module)
    return None if entry.facts_for(spec.arguments).halves else spec


_ARGUMENTS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "transformers.activations.ClippedGELUActivation": lambda module: {
        "min": float(module.min),
        "max": float(module.max),
    },
    "timm.layers.activations.PReLU": lambda module: {"num_parameters": module.num_parameters},
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
    """Return the spec of an activation module of transformers, timm or CLIP, if a registry has the activation."""
    # It is the same function to the rounding of another order of operations.
    path = f"{type(module).__module__}.{type(module).__qualname__}"
    if path in _OPAQUE:
        return opaque_spec(module)
    name = _NAMES.get(path)
    if name is None or name not in registry:
        return None
    read = _ARGUMENTS.get(path)
    return registry.resolve(ActivationSpec.of(name, **(read(module) if read else {})))


# Python looks an attribute up in the instance before nn.Module is asked for its children. From torch 2.11 (or before)
# to 2.15 nn.TransformerDecoderLayer.__setstate__ takes a layer whose activation is a module for one of an old version
# that has none, and puts F.relu beside it: every copy computes ReLU, among them the layers that nn.TransformerDecoder
# and nn.Transformer make of the one they are given, and copy.copy spoils the original.
Module = TypeVar("Module", bound=nn.Module)


def hidden_modules(model: nn.Module) -> set[int]:
    """Return the ``id`` of every module that an attribute of its name hides wherever it stands: nobody calls it."""
    hidden: set[int] = set()
    seen = {id(model)}
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is not None:
                (hidden if name in vars(parent) else seen).add(id(child))
    return hidden - seen


def faithful_copy(model: Module, memo: dict[int, Any] | None = None) -> Module:
    """Return a deep copy in which the same children are hidden as in the original, and no others."""
    memo = {} if memo is None else memo
    twin = copy.deepcopy(model, memo)
    for module in model.modules():
        copied = memo.get(id(module))
        if type(copied) is type(module):
            for name in copied._modules.keys() & (vars(copied).keys() - vars(module).keys()):
                del vars(copied)[name]
    return twin
