"""An ordinary checkpoint of one member of a group."""

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lit_gelu.callbacks import ExactResume
from lit_gelu.data.resumable_loader import random_states
from lit_gelu.errors import message_of
from lit_gelu.replicas.errors import DamagedGroupError, NotReplicableError
from lit_gelu.replicas.stored.stored_group import StoredGroup

_OF_DATA = "ReplicaDataModule"  # under which Lightning saves what that returns: the states of the data by their name


@dataclass(frozen=True)
class Whereabouts:
    """Where a replica's run is.

    Args:
        global_step: Optimizer steps of this replica so far.
        in_epoch: Those of the epoch at hand.
        steps: Those of a whole epoch.
        stream: The state of its random numbers.
        epoch_start: The same as the epoch began.
        loops: The states of the group's loops, of which those of the run alone are made.
        others: The states of its Python's and NumPy's random numbers.
    """

    global_step: int
    in_epoch: int
    steps: int
    stream: Tensor
    epoch_start: Tensor
    loops: dict[str, Any]
    others: Mapping[str, Any] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """The epochs that are over."""
        return self.global_step // self.steps


def beginning(global_step: int, steps: int) -> dict[str, Any]:
    """Return what a checkpoint begins with, of a run with so many steps in an epoch; none before the first one."""
    return {
        "epoch": global_step // steps if steps else 0,
        "global_step": global_step,
        "pytorch-lightning_version": lightning.__version__,
    }


def member_checkpoint(
    member: LightningModule,
    optimizer: dict[str, Any] | None,
    place: Whereabouts | None,
    schedulers: Sequence[dict[str, Any]] = (),
    data: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what the run alone would have saved; its tensors hold no part of a stack.

    Args:
        member: The module.
        optimizer: The state of its optimizer, if it has one yet.
        place: Where its run is, if it has begun.
        schedulers: The states of its schedulers.
        data: The state of its data, by their name.

    Returns:
        A checkpoint for ``load_from_checkpoint`` and ``Trainer.fit(ckpt_path=...)``; with the callback `ExactResume`
        the run goes on alone as it would have in the group.
    """
    state, extras = own_part(member, beginning(0, 0) if place is None else beginning(place.global_step, place.steps))
    return assembled(
        state, {**(data or {}), **extras}, optimizer, copy.deepcopy(list(schedulers)), place, random_states()
    )


def own_part(member: LightningModule, begun: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a member's ``state_dict`` and what else it puts into its checkpoint, such as hyper-parameters.

    Args:
        member: The module.
        begun: What its checkpoint begins with, as its hook may read it.

    Raises:
        NotReplicableError: If its hook reads what a group puts into a checkpoint behind that.
        KeyError: If it reads what is in no checkpoint.
    """
    checkpoint: dict[str, Any] = {**begun, "state_dict": member.state_dict()}
    if member.hparams:
        checkpoint[member.CHECKPOINT_HYPER_PARAMS_NAME] = member._hparams_name
        checkpoint[member.CHECKPOINT_HYPER_PARAMS_KEY] = dict(member.hparams)
    try:
        member.on_save_checkpoint(checkpoint)
    except KeyError as error:
        if error.args[0] not in {"loops", "callbacks", "optimizer_states", "lr_schedulers"}:
            raise
        raise NotReplicableError(
            f"{type(member).__name__}.on_save_checkpoint reads {error.args[0]!r}, which a group adds behind it. It may "
            f"read {', '.join(checkpoint)}."
        ) from error
    state = checkpoint.pop("state_dict")
    return state, {name: value for name, value in checkpoint.items() if begun.get(name, checkpoint) is not value}


def kept_of(member: LightningModule, stacked: Collection[str], begun: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a group's checkpoint holds of a member beside its parts of stacks, which are named only.

    What is no plain data is left out, with a warning: nothing would read a checkpoint that holds it.

    Args:
        member: The module.
        stacked: The names of what is in stacks.
        begun: What its own checkpoint begins with.
    """
    state, extras = own_part(member, begun)
    others = {name: _copied(value) for name, value in state.items() if name not in stacked}
    left_out: list[str] = []
    kept = _plain(extras, "", left_out)
    if left_out:
        rank_zero_warn(
            f"The group's checkpoint leaves out {', '.join(map(repr, left_out))} of {type(member).__name__}: accepted "
            "are numbers, text, tensors, None, and lists, tuples and mappings of them. Write it in on_save_checkpoint "
            "as such if on_load_checkpoint needs it; give load_from_checkpoint what the constructor needs."
        )
    return {"names": list(state), "extras": kept | ({"state_dict": others} if others else {})}


def _copied(value: Any) -> Any:
    """Return a copy; one of a tensor without the stack that it is a part of, as a tied one is under its other name."""
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def _plain(value: Any, path: str, left_out: list[str]) -> Any:
    """Return a value in the types that a checkpoint is read with, and note the paths of what has no such type."""
    if isinstance(value, Tensor):
        return value.detach().as_subclass(Tensor).clone()  # a part of a stack would take all of it along
    if isinstance(value, Mapping):
        given = [(key, inner, f"{path}.{key}" if path else str(key)) for key, inner in value.items()]
        items = [(_plain(key, place, left_out), _plain(inner, place, left_out)) for key, inner, place in given]
        return {key: inner for key, inner in items if key is not _NONE and inner is not _NONE}
    if type(value) in {list, tuple}:
        found = [_plain(inner, f"{path}[{index}]", left_out) for index, inner in enumerate(value)]
        return _NONE if any(inner is _NONE for inner in found) else type(value)(found)
    if value is None or type(value) in {str, bytes, int, float, bool, complex}:
        return value
    left_out.append(path)
    return _NONE


_NONE = object()  # stands for what is left out


def assembled(
    state: Mapping[str, Any],
    extras: Mapping[str, Any],
    optimizer: dict[str, Any] | None,
    schedulers: list[dict[str, Any]],
    place: Whereabouts | None,
    generators: Mapping[str, Any],
) -> dict[str, Any]:
    """Return an ordinary checkpoint of its parts; see `member_checkpoint`."""
    checkpoint: dict[str, Any] = {
        **(beginning(0, 0) if place is None else beginning(place.global_step, place.steps)),
        # A part of a stack, saved as it is, would take the storage of the whole stack along.
        "state_dict": {n: v.detach().clone() if isinstance(v, Tensor) else v for n, v in state.items()},
        "callbacks": {},
        "optimizer_states": [] if optimizer is None else [optimizer],
        "lr_schedulers": schedulers,
    }
    if place is not None:
        checkpoint["loops"] = {**place.loops, "fit_loop": loop_alone(place, generators)}
        kept = {
            "generators": {**generators, **place.others, "torch": place.stream},
            "loaders": [_loader_alone(place, generators)],
            "gradients": {},
        }
        checkpoint["callbacks"] = {ExactResume().state_key: {"ranks": [kept]}}
    return {**checkpoint, **extras}


def extracted(checkpoint: Mapping[str, Any], which: str) -> tuple[str, dict[str, Any]]:
    """Take one member out of a group's checkpoint.

    Args:
        checkpoint: That of the group.
        which: The key of the replica, or its number.

    Returns:
        The key, and the member's ordinary checkpoint, as `ReplicaGroup.member_checkpoint` would have returned it.

    Raises:
        ReplicaArgumentError: If it is no checkpoint of a group, or there is no such replica.
        DamagedGroupError: If it is damaged.
    """
    record = StoredGroup.read(checkpoint)
    replica = record.number_of(which)
    return record.keys[replica], checkpoint_of(checkpoint, record, replica)


def checkpoint_of(checkpoint: Mapping[str, Any], record: StoredGroup, replica: int) -> dict[str, Any]:
    """Return a member's ordinary checkpoint out of a group's; see `extracted`."""
    try:
        return _member_of(checkpoint, record, replica)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise DamagedGroupError(
            f"The checkpoint of the group is damaged ({type(error).__name__}: {message_of(error)}). Give another one."
        ) from error


def _member_of(checkpoint: Mapping[str, Any], record: StoredGroup, replica: int) -> dict[str, Any]:
    own, stacks, place = record.members[replica], checkpoint["state_dict"], None
    state = {
        name: stacks[name][record.rows[name].index(replica)] for name in own["names"] if name in record.rows
    } | dict(own["extras"].get("state_dict", {}))
    extras = {name: value for name, value in own["extras"].items() if name != "state_dict"}
    extras = {**checkpoint.get(_OF_DATA, {}), **extras}
    if record.epoch_start and "loops" in checkpoint:
        present = {
            "global_step": checkpoint["global_step"],
            "in_epoch": record.place,
            "stream": record.streams[replica],
            "epoch_start": record.epoch_start[replica],
            "others": record.others[replica] if record.others else {},
        }
        where = record.ends.get(replica, present)
        place = Whereabouts(**where, steps=record.steps, loops=checkpoint["loops"])
    optimizers = checkpoint.get("optimizer_states") or [None]
    if optimizers[0] is None:
        return assembled(state, extras, None, [], place, record.generators)
    states, schedulers = optimizers[0]["members"][replica], optimizers[0]["schedulers"][replica]
    return assembled(state, extras, states, schedulers, place, record.generators)


def _loader_alone(place: Whereabouts, generators: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a training loader at the replica's place, whatever its order comes from."""
    generator = torch.Generator()
    generator.set_state(place.epoch_start)
    start = {**generators, "torch": place.epoch_start}
    return {"taken": place.in_epoch, "start": start, "seed": generator.initial_seed(), "epoch": place.epoch}


def _is_at_last_batch(epoch: Mapping[str, int], batches: Mapping[str, Any]) -> bool:
    """Tell whether a fit loop's state is from the hooks after an epoch's last batch: its validation is to come."""
    current = batches["current"]
    after_batch = current["ready"] == current["processed"] == current["completed"] + 1
    return bool(batches["is_last_batch"] and after_batch and epoch["started"] == epoch["processed"] + 1)


def loop_alone(place: Whereabouts, generators: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a fit loop that has counted each optimizer step as a batch of its own."""
    alone: dict[str, Any] = copy.deepcopy(place.loops["fit_loop"])
    epochs, batches = alone["epoch_progress"], alone["epoch_loop.batch_progress"]
    ends = _is_at_last_batch(epochs["current"], batches) and place.in_epoch == place.steps
    is_over = place.in_epoch in {0, place.steps} and not ends
    current, begun = 0 if is_over else place.in_epoch, place.epoch + (0 < place.in_epoch < place.steps)
    for progress in epochs.values():
        progress.update(dict.fromkeys(("ready", "started"), begun))
        progress.update(dict.fromkeys(("processed", "completed"), place.epoch - ends))
    batches["is_last_batch"] = ends
    optimizer = alone["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]
    for counts in (batches, *optimizer.values()):
        for name, count in (("total", place.global_step), ("current", current)):
            counts[name] = dict.fromkeys(counts[name], count)
    for counts in (batches["total"], batches["current"]):
        counts["completed"] -= ends
    manual = alone["epoch_loop.manual_optimization.optim_step_progress"]
    for name in ("total", "current"):
        manual[name] = dict.fromkeys(manual[name], 0)
    alone["state_dict"] = {"combined_loader": [_loader_alone(place, generators)]}
    return alone
