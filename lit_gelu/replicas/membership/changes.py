"""Noticing what is changed in live modules: what computes all members was made of them as they were."""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import Any

from lightning.fabric.utilities.data import AttributeDict
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import Metric

from lit_gelu.replicas.errors import NotReplicableError
from lit_gelu.replicas.membership.hooks import check_parameters

# Modules of whose attributes no forward pass reads one.
_WITHOUT_VALUES = frozenset({nn.Linear, nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Identity})
_OF_TORCH = frozenset(vars(nn.Module()))
LOOKED_INTO = frozenset({
    "_modules", "_parameters", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
})  # fmt: skip
# By exact type: classes of others may refuse to be read, as what stands for values that members differ in does.
_CONTAINERS = frozenset({dict, OrderedDict, defaultdict, Counter, AttributeDict, list, set, deque})
# What Lightning and the tasks keep for themselves.
OF_LIGHTNING = frozenset(vars(LightningModule())) - _OF_TORCH | {"_modules_seen"}


class SeenModules:
    """Modules as they were when it looked at them: it tells of changes in less than a microsecond a layer.

    It sees attributes and modes, tensors in attributes, Python's containers there with what they hold directly, layers
    and hooks, and whether parameters are the same and trained. It does not see what other objects in attributes hold.
    Metrics count as they are used, and are not looked at.

    Args:
        modules: Members, or the one that stands for them.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.modules = list(modules)
        self.look()

    def look(self) -> None:
        """Take the modules as they are now for what they were."""
        parts = [(path, part) for module in self.modules for path, part in _watched(module)]
        self._attributes = [(path, vars(part)) for path, part in parts if type(part) not in _WITHOUT_VALUES]
        self._containers = [
            (path, name, value)
            for path, part in parts
            for name, value in vars(part).items()
            if type(value) in _CONTAINERS and (name in LOOKED_INTO or name not in _OF_TORCH | OF_LIGHTNING)
        ]
        self._held: list[Any] = [one[-1] for one in (*self._attributes, *self._containers)]
        self._copies = [dict(held) if isinstance(held, dict) else copy(held) for held in self._held]
        self._tensors = [
            (path, name, value, value._version)
            for path, held in self._attributes
            for name, value in held.items()
            if issubclass(type(value), Tensor)
        ]
        self._parameters = [parameter for module in self.modules for parameter in module.parameters()]
        self._trained = [parameter.requires_grad for parameter in self._parameters]

    def has_changed(self) -> bool:
        """Tell whether anything is another."""
        trained = [parameter.requires_grad for parameter in self._parameters]
        have_hooks = [True for one in self._parameters if one._backward_hooks or one._post_accumulate_grad_hooks]
        in_place = [True for *_, tensor, version in self._tensors if tensor._version != version]
        return bool(have_hooks or in_place) or trained != self._trained or _others(self._held, self._copies)

    def changed(self) -> list[tuple[str, str, Any]]:
        """Return path, name and value of every attribute that is another, or holds something else."""
        copies = iter(self._copies)
        found = [
            (path, name, value)
            for (path, held), before in zip(self._attributes, copies, strict=False)
            for name, value in held.items()
            if name not in OF_LIGHTNING and (name not in before or _others(value, before[name]))
        ]
        found += [(path, name, one) for path, name, one, version in self._tensors if one._version != version]
        return found + [one for one, before in zip(self._containers, copies, strict=True) if _others(one[2], before)]

    def check_parameters(self) -> None:
        """Refuse members whose parameters are no longer those of the stacks.

        Raises:
            NotReplicableError: If a parameter is another, is trained no longer or only now, or has hooks.
        """
        for module in self.modules:
            check_parameters(module)
        now = [parameter for module in self.modules for parameter in module.parameters()]
        same = len(now) == len(self._parameters) and all(map(_is, now, self._parameters))
        if not same or [parameter.requires_grad for parameter in now] != self._trained:
            what = "requires_grad of members' parameters was changed" if same else "Members have other parameters"
            raise NotReplicableError(
                f"{what} since the group was made, which holds those of all in stacks. Freeze layers and put in those "
                "with parameters where members are built, and change parameters in place; or train the modules alone."
            )


def names_of(changed: Sequence[tuple[str, str, Any]]) -> set[str]:
    """Return the names of changed attributes, without torch's own, such as hooks and modes."""
    return {name for _, name, _ in changed} - _OF_TORCH


def _watched(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    metrics = [path for path, part in module.named_modules() if isinstance(part, Metric)]
    inside = tuple(f"{path}." for path in metrics)
    for path, part in module.named_modules():
        if path not in metrics and not path.startswith(inside):
            yield path, part


def _others(now: Any, before: Any) -> bool:
    """Tell whether values differ; what is the very same does not."""
    try:
        return [now] != [before]
    except Exception:  # noqa: BLE001 - of tensors, and of anybody's values: what cannot be compared is another
        return True


def _is(one: Tensor, other: Tensor) -> bool:
    return one is other
