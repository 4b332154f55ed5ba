"""What the one module that computes all members must not read, because members differ in it: reading it is an error."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Self

from lightning.pytorch.utilities.parsing import AttributeDict
from torch import nn

from lit_gelu.replicas.errors import NotReplicableError
from lit_gelu.replicas.membership.same_values import Places, same

NO_VMAP = 'Or give the group executor="loop", which takes every training step.'


def hide(module: nn.Module, names: Collection[str]) -> None:
    """Let attributes raise an error when they are read: the first member's value is not that of all."""

    def unread(name: str) -> property:
        def read(_: nn.Module) -> Any:
            raise NotReplicableError(_read([name]))

        return property(read)

    kind = type(module)
    module.__class__ = type(
        kind.__name__, (kind,), {name: unread(name) for name in names} | {"__module__": kind.__module__}
    )


def hide_metric(path: str, metric: nn.Module) -> None:
    """Let a metric raise an error when it is used: it would count all replicas as one."""

    def use(*_: Any, **__: Any) -> Any:
        raise NotReplicableError(
            f"The training step uses the metric {path!r}, which would count all replicas as one. Compute the figure "
            f"from tensors, with torchmetrics.functional for example. {NO_VMAP}"
        )

    kind, read = type(metric), property(lambda _: use)
    metric.__class__ = type(
        kind.__name__, (kind,), {"__call__": use, **dict.fromkeys(_OF_METRICS, read), "__module__": kind.__module__}
    )


_OF_METRICS = ("forward", "update", "compute", "reset")


def hide_hyper_parameters(template: nn.Module, members: Sequence[nn.Module]) -> None:
    """Let hyper-parameters in which members differ raise an error when they are read, in whatever way."""
    places = [Places(member) for member in members]
    for attribute in ("_hparams", "_hparams_initial"):
        given = [dict(vars(member).get(attribute, {})) for member in members]
        names, missing, first = set().union(*given), object(), given[0]
        hidden = {
            name
            for name in names
            for its, own in zip(given, places, strict=True)
            if not same(first.get(name, missing), its.get(name, missing), (places[0], own))
        }
        if hidden:
            of_template = dict(vars(template).get(attribute, {}))
            setattr(template, attribute, HyperParametersInCommon(of_template, hidden))


class HyperParametersInCommon(AttributeDict):
    """The first member's hyper-parameters, of which those in which members differ, and all at once, are not read.

    Args:
        values: The first member's.
        hidden: The names of those in which members differ.
    """

    def __init__(self, values: dict[str, Any], hidden: Collection[str]) -> None:
        super().__init__(values)
        self.__dict__["hidden"] = frozenset(hidden)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return it: Lightning hands out copies of the initial ones."""
        return self


def _of_one(name: str) -> Callable[..., Any]:
    """Return a method of a dictionary that is asked for one key."""

    def method(self: HyperParametersInCommon, key: Any, *given: Any) -> Any:
        if key in self.__dict__["hidden"]:
            raise NotReplicableError(_read([key]))
        if name == "__getitem__" and not dict.__contains__(self, key):
            raise KeyError(key)
        return getattr(dict, name)(self, key, *given)

    return method


def _of_all() -> Callable[..., Any]:
    """Return a method of a dictionary that goes through all values."""

    def method(self: HyperParametersInCommon, *given: Any) -> Any:  # noqa: ARG001 - as a dictionary's
        raise NotReplicableError(_read(sorted(map(str, self.__dict__["hidden"]))))

    return method


_OF_ONE = ("__getitem__", "__contains__", "get", "pop", "setdefault")
_OF_ALL = (
    "__iter__", "__reversed__", "__eq__", "__ne__", "__or__", "__ror__", "__reduce_ex__", "keys", "values", "items",
    "copy", "popitem",
)  # fmt: skip
for _name in _OF_ONE:
    setattr(HyperParametersInCommon, _name, _of_one(_name))
for _name in _OF_ALL:
    setattr(HyperParametersInCommon, _name, _of_all())


def _read(names: Sequence[str]) -> str:
    shown, listed = ", ".join(map(repr, names)), ", ".join(names)
    return (
        f"The training step reads {shown}, in which the members differ, and all are computed by the code of one. Give "
        f"members of equal {listed} to one group. {NO_VMAP}"
    )
