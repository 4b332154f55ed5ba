"""Refusing members that cannot share their code: what differs in them would be ignored in silence."""

from collections.abc import Collection, Sequence
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from lit_gelu.activations.registry import ActivationRegistry
from lit_gelu.activations.registry import registry as default_registry
from lit_gelu.errors import shown
from lit_gelu.replicas.errors import MembersDifferError
from lit_gelu.replicas.membership.same_values import Places, closes_over, holds_tensor, is_plain, plainly_same, same
from lit_gelu.tasks.layers import HiddenLayer
from lit_gelu.tasks.sample_mean import SampleMean

READ_BY_OPTIMIZERS = frozenset({"learning_rate", "lr", "momentum", "beta1", "weight_decay"})
_OF_ACTIVATIONS = frozenset({"activation", "activation_spec"})
# What torch, Lightning and the tasks keep in a module beside its attributes; hyper-parameters are looked at when read.
_NO_ATTRIBUTES = frozenset({
    "_parameters", "_buffers", "_modules", "_trainer", "_fabric", "_hparams", "_hparams_initial", "_modules_seen",
    "_metric_attributes",
})  # fmt: skip

_HOOKS = frozenset(name for name in vars(nn.Module()) if "_hooks" in name)
_OF_BACKWARD = ("_backward_hooks", "_backward_pre_hooks")  # torch.vmap calls none of them


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
        For every module's path the attributes that are no other member's.

    Raises:
        MembersDifferError: If they differ in anything else.
    """
    first, found = modules[0], dict[str, set[str]]()
    activations = activation_paths(modules)
    trees, places = [_outside(module, activations) for module in modules], [Places(module) for module in modules]
    for replica, (module, tree) in enumerate(zip(modules, trees, strict=True)):
        for path in sorted(trees[0].keys() | tree.keys()):
            one, other = _of_a_kind(path, replica, trees[0].get(path), tree.get(path))
            names = _differing(one, other, (places[0], places[replica]))
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
            names |= _held_in_attributes(other, places[replica])
            found.setdefault(path, set()).update(names)
        _check_ties(replica, places[0], places[replica])
    return found


def _of_a_kind(path: str, replica: int, one: nn.Module | None, other: nn.Module | None) -> tuple[nn.Module, nn.Module]:
    """Return two members' modules at a path, or refuse them."""
    if one is None or other is None or _class_of(one) != _class_of(other):
        raise MembersDifferError(
            f"Members 0 and {replica} differ at {_place(path)}: {_kind(one)} and {_kind(other)}. A "
            "group has one net for all; give nets of another kind to another group."
        )
    if _tensors(one) != _tensors(other):
        raise MembersDifferError(
            f"Members 0 and {replica} differ at {_place(path)}: they hold {_tensors(one)} and "
            f"{_tensors(other)}. Give members that hold the same parameters and buffers."
        )
    return one, other


def _check_ties(replica: int, first: Places, other: Places) -> None:
    """Refuse members of which one holds a thing under several names, and another has a thing of its own for each."""
    for mine, its in ((first.tensors, other.tensors), (first.modules, other.modules)):
        tied, its_tied = ({names for names in found.values() if len(names) > 1} for found in (mine, its))
        for names in sorted(map(sorted, tied ^ its_tied)):
            raise MembersDifferError(
                f"Members 0 and {replica} differ in {shown(names)}: in one of them these names are of one thing, in "
                "the other they are not. A group holds what is the same once for all. Give nets that share parts to "
                "one group, and those that do not to another."
            )


def _outside(module: nn.Module, activations: Collection[str]) -> dict[str, nn.Module]:
    """Return a member's modules by path, without the activations and what these hold."""
    inside = tuple(f"{path}." for path in activations)
    # A mean has no settings, and to compare what torchmetrics keeps in it takes longer than all else.
    return {
        path: found
        for path, found in module.named_modules()
        if path not in activations and not path.startswith(inside) and type(found) is not SampleMean
    }


def _place(path: str) -> str:
    return repr(path) if path else "the top"


def _kind(module: nn.Module | None) -> str:
    return "nothing" if module is None else type(module).__name__


def _tensors(module: nn.Module) -> list[str]:
    named = [*module._parameters.items(), *module._buffers.items()]
    return sorted(name for name, tensor in named if tensor is not None)


def _class_of(module: nn.Module) -> tuple[type, tuple[str, ...]]:
    """Return a module's class, and the tensors that are parametrized: torch makes a class for each such module."""
    if not is_parametrized(module):
        return type(module), ()
    parametrizations: Any = module.parametrizations
    return type(module).__bases__[0], tuple(parametrizations)


def _held_in_attributes(module: nn.Module, places: Places) -> set[str]:
    """Return the names of attributes that the code of one cannot use for all: they reach a member's own parts."""
    given = {name: value for name, value in vars(module).items() if name not in _NO_ATTRIBUTES and not is_plain(value)}
    backward = {name for name in _OF_BACKWARD if given.get(name)}
    return backward | {
        name for name, value in given.items() if closes_over(value, places) or holds_tensor(value, places)
    }


def _differing(one: nn.Module, other: nn.Module, places: tuple[Places, Places]) -> set[str]:
    mine, its, missing = vars(one), vars(other), object()
    # Most are empty, or a number: to ask for each in the long way takes as long as building the members.
    found = {
        name
        for name in (mine.keys() | its.keys()) - _NO_ATTRIBUTES
        if not plainly_same(mine.get(name, missing), its.get(name, missing))
    }
    return {
        name for name in found if not same(_attribute(one, name, missing), _attribute(other, name, missing), places)
    }


def _attribute(module: nn.Module, name: str, missing: object) -> Any:
    """Return an attribute; hooks by their place, because torch numbers all that there are in a process."""
    value = vars(module).get(name, missing)
    if value is missing or name not in _HOOKS or not value:
        return value
    options_of = name.removesuffix("_with_kwargs").removesuffix("_always_called")
    numbers = list(vars(module).get(options_of, value))
    return {numbers.index(number): hook for number, hook in value.items()}
