"""Refusing members that cannot share their code: what differs in them would be ignored in silence."""

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.activations.registry import ActivationRegistry
from lit_gelu.activations.registry import registry as default_registry
from lit_gelu.errors import shown
from lit_gelu.replicas.errors import MembersDifferError
from lit_gelu.tasks.layers import HiddenLayer

READ_BY_OPTIMIZERS = frozenset({"learning_rate", "lr", "momentum", "beta1", "weight_decay"})
_OF_ACTIVATIONS = frozenset({"activation", "activation_spec"})
# What torch, Lightning and the tasks keep in a module beside its attributes; hyper-parameters are looked at when read.
_NO_ATTRIBUTES = frozenset({
    "_parameters", "_buffers", "_modules", "_trainer", "_fabric", "_hparams", "_hparams_initial", "_modules_seen",
})  # fmt: skip
_DEEPEST = 6


def registry_of(module: nn.Module) -> ActivationRegistry:
    """Return the registry that a module names, or the default one."""
    own = getattr(module, "registry", None)
    return own if isinstance(own, ActivationRegistry) else default_registry


def activation_paths(modules: Sequence[nn.Module]) -> list[str]:
    """Return where all members have an activation: a registered one, or whatever stands there in a `HiddenLayer`."""
    found: list[str] = []
    for path, module in modules[0].named_modules():
        if any(path.startswith(f"{outer}.") for outer in found):
            continue
        parent, _, name = path.rpartition(".")
        in_layer = name == "activation" and isinstance(modules[0].get_submodule(parent), HiddenLayer)
        if in_layer or (registry_of(modules[0]).entry_of(module) is not None and _registered(path, modules)):
            found.append(path)
    return found


def _registered(path: str, modules: Sequence[nn.Module]) -> bool:
    try:
        return all(registry_of(module).entry_of(module.get_submodule(path)) is not None for module in modules)
    except AttributeError:
        return False  # `check_alike` says so


def check_alike(modules: Sequence[nn.Module], differ: Collection[str] = ()) -> dict[str, set[str]]:
    """Refuse members that differ in what all of them would compute by the code of one.

    Activations and the chance of dropout may differ, and attributes that only ``configure_optimizers`` reads.

    Args:
        modules: The members.
        differ: Names of further attributes that may differ, because no training step reads them.

    Returns:
        For every module's path the attributes in which members do differ.

    Raises:
        MembersDifferError: If they differ in anything else.
    """
    first, found = modules[0], dict[str, set[str]]()
    activations = activation_paths(modules)
    trees = [_outside(module, activations) for module in modules]
    for replica, (module, tree) in enumerate(zip(modules, trees, strict=True)):
        for path in sorted(trees[0].keys() | tree.keys()):
            one, other = trees[0].get(path), tree.get(path)
            if type(one) is not type(other):
                raise MembersDifferError(
                    f"Members 0 and {replica} differ at {_place(path)}: {_kind(one)} and {_kind(other)}. A "
                    "group has one net for all; give nets of another kind to another group."
                )
            assert one is not None and other is not None  # noqa: S101, PT018 - their types are the same
            if _tensors(one) != _tensors(other):
                raise MembersDifferError(
                    f"Members 0 and {replica} differ at {_place(path)}: they hold {_tensors(one)} and "
                    f"{_tensors(other)}. Give members that hold the same parameters and buffers."
                )
            names = _differing(one, other)
            allowed = READ_BY_OPTIMIZERS | set(differ) | ({"p"} if isinstance(one, nn.Dropout) else set())
            allowed |= _OF_ACTIVATIONS if module is other and first is one else set()
            for name in sorted(names - allowed):
                mine, its = getattr(one, name, None), getattr(other, name, None)
                raise MembersDifferError(
                    f"Members 0 and {replica} differ in {'.'.join(filter(None, (path, name)))!r}: {shown(mine)} and "
                    f"{shown(its)}. A group computes all members by the code of the first, so the others' would be "
                    f"ignored. Give them to groups of their own, or, if only configure_optimizers reads it, "
                    f"differ=({name!r},)."
                )
            found.setdefault(path, set()).update(names)
    return found


def _outside(module: nn.Module, activations: Collection[str]) -> dict[str, nn.Module]:
    """Return a member's modules by path, without the activations and what these hold."""
    inside = tuple(f"{path}." for path in activations)
    return {
        path: found for path, found in module.named_modules() if path not in activations and not path.startswith(inside)
    }


def _place(path: str) -> str:
    return repr(path) if path else "the top"


def _kind(module: nn.Module | None) -> str:
    return "nothing" if module is None else type(module).__name__


def _tensors(module: nn.Module) -> list[str]:
    named = [*module._parameters.items(), *module._buffers.items()]
    return sorted(name for name, tensor in named if tensor is not None)


def _differing(one: nn.Module, other: nn.Module) -> set[str]:
    names = (vars(one).keys() | vars(other).keys()) - _NO_ATTRIBUTES
    missing = object()
    return {name for name in names if not same(vars(one).get(name, missing), vars(other).get(name, missing))}


def same(one: Any, other: Any, depth: int = 0) -> bool:
    """Tell whether two attributes would make the same code compute the same; what cannot be told is another."""
    if one is other or (isinstance(one, nn.Module) and type(one) is type(other)):  # modules are compared themselves
        return True
    if type(one) is not type(other) or depth > _DEEPEST:
        return False
    if isinstance(one, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    deeper = functools.partial(same, depth=depth + 1)
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(deeper(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(deeper, one, other))
    return deeper(*map(_parts, (one, other))) if isinstance(one, _IN_PARTS) else _same_objects(one, other, deeper)


_IN_PARTS = (FunctionType, MethodType, functools.partial)


def _parts(function: Any) -> tuple[Any, ...]:
    """Return what a function computes with: its code, and what it holds."""
    if isinstance(function, functools.partial):
        return function.func, function.args, function.keywords
    if isinstance(function, MethodType):
        return function.__func__, function.__self__
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    return function.__code__, function.__defaults__, function.__kwdefaults__, held


def _same_objects(one: Any, other: Any, deeper: Callable[[Any, Any], bool]) -> bool:
    equality: Any = type(one).__eq__
    if equality is not object.__eq__:
        return bool(one == other)
    return hasattr(one, "__dict__") and deeper(vars(one), vars(other))
