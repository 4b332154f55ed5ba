"""What counts as an activation: torch's operators and functions, and modules; and from each of them to its spec."""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.modules import FunctionActivation
from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts
from lit_gelu.activations.naming.forms import opaque_spec
from lit_gelu.errors import LitGeluError

Arguments = Mapping[str, Any]
_SELU_SCALE = 1.0507009873554805


def _elu(arguments: Arguments) -> ActivationSpec | None:
    if math.isclose(arguments["scale"], _SELU_SCALE, rel_tol=1e-6):
        return ActivationSpec("selu")
    if arguments["scale"] == 1:
        return ActivationSpec.of("elu", alpha=float(arguments["alpha"]))
    return None


def _fused(arguments: Arguments) -> ActivationSpec | None:
    return ActivationSpec("gelu" if arguments["use_gelu"] else "relu")


# Operators that are no function of torch's by their name, or have other arguments than a spec.
_SPECS: Mapping[str, Callable[[Arguments], ActivationSpec | None]] = {
    "_addmm_activation": _fused,
    "_prelu_kernel": lambda _: ActivationSpec("prelu"),
    "_transformer_encoder_layer_fwd": _fused,
    "elu": _elu,
    "hardtanh": lambda arguments: (
        ActivationSpec("relu6") if (arguments["min_val"], arguments["max_val"]) == (0, 6) else None
    ),
    "log_sigmoid": lambda _: ActivationSpec("log_sigmoid"),
    "log_sigmoid_forward": lambda _: ActivationSpec("log_sigmoid"),
    "prelu": lambda arguments: ActivationSpec.of("prelu", num_parameters=arguments["weight"].numel()),
}

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
    overload: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], table: "FunctionTable"
) -> ActivationSpec | None:
    """Return the canonical spec of what an ``OpOverload`` computes, ``None`` if it is no registered activation."""
    schema, name = overload._schema.arguments, kernel_name(overload)
    arguments = {row.name: row.default_value for row in schema if row.has_default_value()}
    arguments |= {row.name: value for row, value in zip(schema, args, strict=False)} | dict(kwargs)
    function = table.find(getattr(F, name, None))
    if function is not None and name not in _SPECS:
        return table.spec(function, (), arguments)
    spec = _SPECS[name](arguments) if name in _SPECS else None
    try:
        return None if spec is None else table.registry.resolve(spec)
    except LitGeluError:  # the registry lacks it
        return None


def is_gate(spec: ActivationSpec, registry: ActivationRegistry) -> bool:
    """Say whether an activation usually gates another value."""
    return not spec.opaque and registry.entry(spec.name).facts_for(spec.arguments).gate


_PLACES = (F, torch, Tensor, torch._C._nn)
_SAME = {"sigmoid": (torch.special.expit,)}  # under another name
_INPUTS = ("input", "x", "self")


@dataclass(frozen=True)
class KnownFunction:
    """A function of torch that is an activation: a row of the registry names it, or one that torch has like it."""

    function: Callable[..., Any]  # the function, or the tensor's method
    entry: ActivationEntry
    # From a call's arguments to those of a spec, where they are others.
    read: Callable[..., dict[str, Any]] | None = None

    @property
    def name(self) -> str:
        """The canonical name of the activation."""
        return self.entry.name

    @functools.cached_property
    def facts(self) -> ActivationFacts:
        """What the row states of the activation; asked once the function is met."""
        return self.entry.facts_for(self.entry.preset.arguments if self.entry.preset else {})

    @property
    def path(self) -> str:
        """Where the function is found, such as ``torch.nn.functional.gelu`` or ``torch.Tensor.relu``."""
        name = str(getattr(self.function, "__name__", self.name))
        for place in _PLACES:
            if getattr(place, name, None) is self.function:
                return f"{'torch.Tensor' if place is Tensor else place.__name__}.{name}"
        return f"{getattr(self.function, '__module__', 'torch')}.{name}"

    def arguments_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, without the input."""
        if self.read is not None:
            names = tuple(inspect.signature(self.read).parameters)
        elif inspect.isfunction(self.function):
            names = tuple(inspect.signature(self.function).parameters)[1:]
        else:
            names = tuple(name for name in self.entry.parameters if name != "inplace")
        by_name = {key: value for key, value in kwargs.items() if key not in {*_INPUTS, "_stacklevel"}}
        positional = args if any(key in kwargs for key in _INPUTS) else args[1:]
        arguments = dict(zip(names, positional, strict=False)) | by_name
        overwrites = str(getattr(self.function, "__name__", "")).endswith("_")
        return arguments | ({"inplace": True} if overwrites else {})


class FunctionTable:
    """The functions of torch that a registry's activations are the same as, under all names that torch has for them."""

    # The rows of the registry name functions (``F.relu``, ``torch.relu``, ...); torch has the same as tensors' methods
    # and with an underscore for the one that overwrites its input, which are found by their name.

    def __init__(self, registry: ActivationRegistry) -> None:
        self.registry = registry
        self._functions: dict[Any, KnownFunction] = {}
        for entry in registry.entries():
            for function, read in {**dict.fromkeys(entry.functions), **entry.calls}.items():
                for form in _forms(function):
                    self._functions.setdefault(form, KnownFunction(form, entry, read))

    def find(self, function: Any) -> KnownFunction | None:
        """Return what is known of a function, ``None`` if an object is no activation."""
        try:
            match = self._functions.get(function)
        except TypeError:  # it has no hash
            return None
        return None if match is None or match.facts.halves else match  # no other could stand for GLU

    def find_held(self, value: Any) -> tuple[KnownFunction, dict[str, Any]] | None:
        """Return what is known of an attribute's value, a function or a partial, and the arguments bound to it."""
        partial = isinstance(value, functools.partial) and not value.args
        row = self.find(value.func if partial else value)
        return None if row is None else (row, dict(value.keywords) if partial else {})

    def spec(self, function: KnownFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ActivationSpec:
        """Return the canonical spec of one call; for arguments that are no plain data an opaque one."""
        arguments = function.arguments_of(args, kwargs)
        try:
            if function.read is not None:
                arguments = function.read(**arguments)
            return self.registry.resolve(ActivationSpec.of(function.name, **arguments))
        except LitGeluError:
            pass  # a tensor as an argument, or one that the activation's module does not have: not to be rebuilt
        plain = {key: value for key, value in arguments.items() if isinstance(value, (bool, int, float, str))}
        return ActivationSpec(function.path, tuple(plain.items()), opaque=True)


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
    """Return the spec of a module that is an activation site; ``None`` if it is none."""
    if type(module) is nn.Identity:
        return None
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

# From the class to a name of the registry, by module; the libraries themselves are not imported.
_TIMM = {
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
}
_NAMES: Mapping[str, Mapping[str, str]] = {
    "transformers.activations": {
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
    },
    "timm.layers.activations": _TIMM,
    "timm.layers.activations_me": {f"{name}Me": activation for name, activation in _TIMM.items()},
    "clip.model": {"QuickGELU": "gelu_sigmoid"},
    "open_clip.transformer": {"QuickGELU": "gelu_sigmoid"},
}


def foreign_spec(module: nn.Module, registry: ActivationRegistry) -> ActivationSpec | None:
    """Return the spec of an activation module of transformers, timm or CLIP, if a registry has the activation."""
    # It is the same function to the rounding of another order of operations.
    path = f"{type(module).__module__}.{type(module).__qualname__}"
    if path in _OPAQUE:
        return opaque_spec(module)
    name = _NAMES.get(type(module).__module__, {}).get(type(module).__qualname__)
    if name is None or name not in registry:
        return None
    read = _ARGUMENTS.get(path)
    return registry.resolve(ActivationSpec.of(name, **(read(module) if read else {})))


# Python looks an attribute up in the instance before nn.Module is asked for its children. From torch 2.11 (or before)
# to 2.15 nn.TransformerDecoderLayer.__setstate__ takes a layer whose activation is a module for one of an old version
# that has none, and puts F.relu beside it: every copy computes ReLU, among them the layers that nn.TransformerDecoder
# and nn.Transformer make of the one they are given, and copy.copy spoils the original.
def hidden_modules(model: nn.Module) -> set[int]:
    """Return the ``id`` of every module that an attribute of its name hides wherever it stands: nobody calls it."""
    hidden: set[int] = set()
    seen = {id(model)}
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is not None:
                (seen if vars(parent).get(name, child) is child else hidden).add(id(child))
    return hidden - seen
