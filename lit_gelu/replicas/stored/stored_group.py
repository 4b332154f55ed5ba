"""What a group's checkpoint holds beside what Lightning saves, and reading it: it may be damaged, or anybody's."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import torch
from torch import Tensor

from lit_gelu.callbacks.checkpoint_file import REPLICAS_KEY
from lit_gelu.data.errors import CorruptDataError
from lit_gelu.data.resumable_loader import check_random_states
from lit_gelu.errors import message_of, shown
from lit_gelu.replicas.errors import DamagedGroupError, ReplicaArgumentError

_STREAM = len(torch.Generator().get_state())  # bytes of a generator's state
_OF_ENDS = {"global_step": int, "in_epoch": int, "stream": Tensor, "epoch_start": Tensor, "others": dict}
_OF_MEMBERS = {"names": list, "extras": dict}
_OF_FIGURES = {"options": dict, "values": Tensor}
_OF_OPTIONS = {"on_step": bool, "on_epoch": bool, "reduction": str, "batch_size": int | None}
_REDUCTIONS = ("mean", "sum", "max", "min")


@dataclass(frozen=True)
class StoredGroup:
    """A group as a checkpoint has it.

    Args:
        keys: What each replica is called.
        seeds: The seed of each.
        steps: Optimizer steps in an epoch; 0 before the first one.
        place: Those made of the epoch at hand.
        streams: The state of each one's random numbers.
        epoch_start: The same as the epoch began; empty before the first one.
        active: Whether each is trained.
        ends: Where the runs of those that are not are.
        measured: What validation found last, ``[replicas]`` by name.
        plateau_epoch: The last epoch behind which schedulers looked at that.
        rows: The replicas that hold each tensor of the stacks, by name.
        members: For each what its own checkpoint holds beside tensors.
        generators: The global generators of Python and NumPy.
        others: Those of each replica; empty in files of earlier code.
        figures: What steps of the epoch logged for the whole of it, ``[steps, replicas]``, with the options of
            ``self.log``, by name; empty in files of earlier code.
    """

    keys: list[str]
    seeds: list[int]
    steps: int
    place: int
    streams: list[Tensor]
    epoch_start: list[Tensor]
    active: list[bool]
    ends: dict[int, dict[str, Any]]
    measured: dict[str, Tensor]
    plateau_epoch: int
    rows: dict[str, list[int]]
    members: list[dict[str, Any]]
    generators: dict[str, Any]
    others: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {own.name: getattr(self, own.name) for own in fields(self)}

    @classmethod
    def read(cls, checkpoint: Mapping[str, Any]) -> Self:
        """Read the record of a checkpoint, or say why it has none that a group wrote."""
        found = checkpoint.get(REPLICAS_KEY)
        if found is None:
            raise ReplicaArgumentError(
                "The checkpoint holds no group: it is one of a single model. Give one that was saved by a Trainer of a "
                "ReplicaGroup."
            )
        names = {own.name for own in fields(cls)}
        if not isinstance(found, dict) or {*found, "others", "figures"} != names:
            raise _damaged(f"it has {shown(sorted(map(str, found)) if isinstance(found, dict) else found)}")
        record = cls(**found)
        record._check()
        return record

    def _check(self) -> None:
        """Refuse what has other types or sizes than what was written."""
        count = len(self.seeds) if isinstance(self.seeds, list) else 0
        lists = {"keys": str, "seeds": int, "streams": Tensor, "active": bool, "members": dict, "epoch_start": Tensor}
        lists["others"] = dict
        for name, kind in lists.items():
            values = getattr(self, name)
            may_be_empty = name in {"epoch_start", "others"} and values == []
            if not _is_list(values, kind) or not count or (len(values) != count and not may_be_empty):
                raise _damaged(f"its {name} are {shown(values)}, and not {count or 'some'} of {kind.__name__}")
        for state in (*self.streams, *self.epoch_start):
            _check_stream(state)
        for others in self.others:
            _check_others(others)
        for name in ("steps", "place", "plateau_epoch"):
            if type(getattr(self, name)) is not int:
                raise _damaged(f"its {name} is {shown(getattr(self, name))}")
        if not 0 <= self.place <= self.steps or self.plateau_epoch < -1:
            raise _damaged(f"it is at step {self.place} of {self.steps}")
        if len(set(self.keys)) != count:
            raise _damaged(f"its keys are {shown(self.keys)}, of which some are the same")
        self._check_mappings(count)

    def _check_mappings(self, count: int) -> None:
        for name in ("ends", "measured", "rows", "generators", "figures"):
            if not isinstance(getattr(self, name), dict):
                raise _damaged(f"its {name} are {shown(getattr(self, name))}")
        for values in self.measured.values():
            if not isinstance(values, Tensor) or values.shape != (count,):
                raise _damaged(f"its measured values are {shown(values)}, and not {count}")
        for rows in self.rows.values():
            if not _is_list(rows, int) or not set(rows) <= set(range(count)):
                raise _damaged(f"a tensor is of the replicas {shown(rows)}")
        for member in self.members:
            if not _has(member, _OF_MEMBERS) or not _is_list(member["names"], str):
                raise _damaged(f"a member has {shown(member)}")
        self._check_figures(count)
        self._check_ends(count)

    def _check_figures(self, count: int) -> None:
        for name, figure in self.figures.items():
            if not isinstance(name, str) or not _is_figure(figure, count):
                raise _damaged(f"its figure {shown(name)} is {shown(figure)}")

    def _check_ends(self, count: int) -> None:
        for replica, end in self.ends.items():
            whole = {"others": {}, **end} if isinstance(end, dict) else end  # files of earlier code have no others
            if replica not in range(count) or not _has(whole, _OF_ENDS) or not 0 <= end["in_epoch"] <= self.steps:
                raise _damaged(f"the end of replica {shown(replica)} is {shown(end)}")
            _check_others(whole["others"])
            _check_stream(end["stream"])
            _check_stream(end["epoch_start"])

    def check_group(self, seeds: list[int], keys: list[str]) -> None:
        """Refuse to go on with other members."""
        for name, theirs, ours in (("seeds", self.seeds, seeds), ("members", self.keys, keys)):
            if theirs != ours:
                raise ReplicaArgumentError(
                    f"The checkpoint holds a group with the {name} {theirs}; this group has the {name} {ours}. Resume "
                    "with the members that it was saved with, in their order."
                )

    def check_steps(self, steps: int) -> None:
        """Refuse to go on with data of another size."""
        if self.steps and self.steps != steps:
            raise ReplicaArgumentError(
                f"The checkpoint was saved in epochs of {self.steps} steps, and these data have {steps}. Resume with "
                "the data and the batch size that it was saved with."
            )

    def number_of(self, which: str) -> int:
        """Return the number of a replica by its key, or by that number as text."""
        if which in self.keys:
            return self.keys.index(which)
        if which.isdecimal() and int(which) < len(self.keys):
            return int(which)
        raise ReplicaArgumentError(
            f"There is no replica {which!r}. Give a number below {len(self.keys)}, or a key: {', '.join(self.keys)}."
        )


def _is_list(values: object, kind: type) -> bool:
    return isinstance(values, list) and all(type(v) is kind or (kind is Tensor and isinstance(v, kind)) for v in values)


def _is_figure(figure: Any, replicas: int) -> bool:
    """Tell whether it is a figure of some steps, and how it is logged."""
    return (
        _has(figure, _OF_FIGURES)
        and _has(figure["options"], _OF_OPTIONS)
        and figure["options"]["reduction"] in _REDUCTIONS
        and figure["values"].is_floating_point()
        and figure["values"].shape[1:] == (replicas,)
        and len(figure["values"]) > 0
    )


def _has(values: Any, kinds: Mapping[str, Any]) -> bool:
    return (
        isinstance(values, dict)
        and values.keys() == kinds.keys()
        and all(isinstance(values[name], kind) for name, kind in kinds.items())
    )


def _check_stream(state: Tensor) -> None:
    """Refuse a state of a generator that torch would not take."""
    if state.dtype != torch.uint8 or state.shape != (_STREAM,):
        raise _damaged(f"a state of random numbers is {state.dtype}, {list(state.shape)}")
    try:
        torch.Generator().set_state(state)
    except RuntimeError as error:
        raise _damaged(f"a state of random numbers is none ({message_of(error)})") from error


def _check_others(states: Mapping[str, Any]) -> None:
    """Refuse states of Python's and NumPy's generators that these would not take."""
    try:
        if states:
            check_random_states({**states, "torch": torch.get_rng_state()})
    except CorruptDataError as error:
        raise _damaged(f"a state of random numbers is none ({message_of(error)})") from error


def _damaged(what: str) -> DamagedGroupError:
    return DamagedGroupError(
        f"What the checkpoint says of its group is damaged, or of another version: {what}. Give another checkpoint."
    )
