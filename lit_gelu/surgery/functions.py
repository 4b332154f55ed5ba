"""Which functions of torch are activations, and from the arguments of a call to its spec."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.errors import LitGeluError
from lit_gelu.surgery.kernels import operator_spec

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
