"""An ordinary checkpoint of one member of a group."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lightning
import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lit_gelu.callbacks import ExactResume
from lit_gelu.data.resumable_loader import random_states


@dataclass(frozen=True)
class Whereabouts:
    """Where a replica's run is.

    Args:
        global_step: Optimizer steps of this replica so far.
        in_epoch: Those of the epoch at hand.
        steps: Those of a whole epoch.
        stream: The state of its random numbers.
        epoch_start: The same as the epoch began.
        loops: The state of the group's fit loop, of which that of the run alone is made.
    """

    global_step: int
    in_epoch: int
    steps: int
    stream: Tensor
    epoch_start: Tensor
    loops: dict[str, Any]

    @property
    def epoch(self) -> int:
        """The epochs that are over."""
        return self.global_step // self.steps


def member_checkpoint(
    member: LightningModule,
    optimizer: dict[str, Any] | None,
    place: Whereabouts | None,
    schedulers: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Return what the run alone would have saved; its tensors hold no part of a stack.

    Args:
        member: The module.
        optimizer: The state of its optimizer, if it has one yet.
        place: Where its run is, if it has begun.
        schedulers: The states of its schedulers.

    Returns:
        A checkpoint for ``load_from_checkpoint`` and ``Trainer.fit(ckpt_path=...)``; with the callback `ExactResume`
        the run goes on alone as it would have in the group.
    """
    checkpoint: dict[str, Any] = {
        "epoch": 0 if place is None else place.epoch,
        "global_step": 0 if place is None else place.global_step,
        "pytorch-lightning_version": lightning.__version__,
        # A part of a stack, saved as it is, would take the storage of the whole stack along.
        "state_dict": {name: tensor.detach().clone() for name, tensor in member.state_dict().items()},
        "callbacks": {},
        "optimizer_states": [] if optimizer is None else [optimizer],
        "lr_schedulers": copy.deepcopy(list(schedulers)),
    }
    if place is not None:
        checkpoint["loops"] = {"fit_loop": loop_alone(place)}
        checkpoint["callbacks"] = {ExactResume().state_key: {"ranks": [_random_numbers(place)]}}
    if member.hparams:
        checkpoint[member.CHECKPOINT_HYPER_PARAMS_NAME] = member._hparams_name
        checkpoint[member.CHECKPOINT_HYPER_PARAMS_KEY] = dict(member.hparams)
    member.on_save_checkpoint(checkpoint)
    return checkpoint


def _loader_alone(place: Whereabouts) -> dict[str, Any]:
    """Return the state of a training loader at the replica's place, whatever its order comes from."""
    generator = torch.Generator()
    generator.set_state(place.epoch_start)
    start = random_states() | {"torch": place.epoch_start}
    return {"taken": place.in_epoch, "start": start, "seed": generator.initial_seed(), "epoch": place.epoch}


def _random_numbers(place: Whereabouts) -> dict[str, Any]:
    """Return what `ExactResume` keeps of a rank."""
    generators = random_states() | {"torch": place.stream}
    return {"generators": generators, "loaders": [_loader_alone(place)], "gradients": {}}


def loop_alone(place: Whereabouts) -> dict[str, Any]:
    """Return the state of a fit loop that has counted each optimizer step as a batch of its own."""
    is_over = place.in_epoch in {0, place.steps}
    current = 0 if is_over else place.in_epoch
    alone = copy.deepcopy(place.loops)
    for progress in alone["epoch_progress"].values():
        progress.update(ready=place.epoch + (not is_over), started=place.epoch + (not is_over))
        progress.update(processed=0 if place is None else place.epoch, completed=place.epoch)
    batches = alone["epoch_loop.batch_progress"]
    batches["is_last_batch"] = False
    optimizer = alone["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]
    for counts in (batches, *optimizer.values()):
        for name, count in (("total", place.global_step), ("current", current)):
            counts[name] = dict.fromkeys(counts[name], count)
    manual = alone["epoch_loop.manual_optimization.optim_step_progress"]
    for name in ("total", "current"):
        manual[name] = dict.fromkeys(manual[name], 0)
    alone["state_dict"] = {"combined_loader": [_loader_alone(place)]}
    return alone
