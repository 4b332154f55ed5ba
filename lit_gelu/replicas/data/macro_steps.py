"""Several optimizer steps in one batch of the Trainer: the loader of their numbers, and Lightning's own counters."""

import math
from collections.abc import Collection, Iterator
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

REPLICA_STEPS = 512  # in one macro-step by default: what the Trainer does around it then takes little, and it ends soon


class MacroSteps:
    """A loader of step numbers: an epoch in chunks, each of which is a batch for the Trainer.

    Every epoch has as many of them, because Lightning asks for their number once.

    Args:
        steps: Optimizer steps in an epoch.
        steps_per_batch: How many of them are one batch of the Trainer, at most.
        ends: Numbers of steps after which a batch ends in any case.
        intervals: A batch also ends where the steps of the whole run, with those `before`, are a multiple of one.
    """

    def __init__(
        self, steps: int, steps_per_batch: int, ends: Collection[int] = (), intervals: Collection[int] = ()
    ) -> None:
        self.steps, self.steps_per_batch, self.intervals = steps, steps_per_batch, sorted(set(intervals))
        self.ends = sorted({steps, *(end for end in ends if 0 < end < steps)})
        self.start = 0
        self.before = 0  # steps of the epochs that are over
        most = len(self._chunks(0, self.ends)) + sum(math.ceil(steps / interval) for interval in self.intervals)
        self._length = min(steps, most)

    def __len__(self) -> int:
        """Return the batches of a whole epoch."""
        return self._length

    def __iter__(self) -> Iterator[Tensor]:
        """Yield the numbers of an epoch's steps, from `start` on, which is 0 again afterwards."""
        start, self.start = self.start, 0
        for first, end in self._batches(start):
            yield torch.arange(first, end)

    def batches_from(self, start: int) -> int:
        """Return the batches of an epoch that goes on behind so many steps."""
        return len(self._batches(start))

    def _batches(self, start: int) -> list[tuple[int, int]]:
        """Return the first step of every batch and the one behind its last."""
        due = {end for n in self.intervals for end in range(n - self.before % n, self.steps, n)}
        chunks = self._chunks(start, sorted({*self.ends, *due}))
        while start == 0 and len(chunks) < self._length:
            chunks = _some_halved(chunks, self._length - len(chunks))
        return chunks

    def _chunks(self, start: int, ends: Collection[int]) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for end in ends:
            found.extend(
                (first, min(first + self.steps_per_batch, end)) for first in range(start, end, self.steps_per_batch)
            )
            start = max(start, end)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the group's checkpoint says at which step an epoch was."""
        return {"steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing, as `state_dict`; without it Lightning warns that an epoch cannot go on."""


def _some_halved(chunks: Collection[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """Return chunks of which so many, if there are, are two of half the size."""
    halved: list[tuple[int, int]] = []
    for first, end in chunks:
        middle = (first + end) // 2
        if count and middle > first:
            halved += [(first, middle), (middle, end)]
            count -= 1
        else:
            halved.append((first, end))
    return halved


def steps_in_a_batch(asked: int | str, replicas: int, steps: int, *, on_gpu: bool = False) -> int:
    """Return how many steps one batch of the Trainer is, of an epoch's; a GPU makes all replicas' in one's time."""
    together = 1 if on_gpu else replicas
    return min(steps, max(1, REPLICA_STEPS // together) if isinstance(asked, str) else asked)


def count_further_steps(trainer: Trainer, further: int) -> None:
    """Let a Trainer's ``global_step`` count optimizer steps: it has counted one in this batch."""
    # Lightning has no public name for this. `tests/replicas/test_group.py` fails where these have moved.
    loop = trainer.fit_loop.epoch_loop
    total = loop.manual_optimization.optim_step_progress.total
    total.ready += further
    total.completed += further
    loop._batches_that_stepped += further


def place_in_epoch(checkpoint: dict[str, Any], place: int, loader: MacroSteps) -> None:
    """Let Lightning's place in a checkpoint's epoch be ``place``, an optimizer step, in batches of the present size."""
    fit_loop = checkpoint["loops"]["fit_loop"]
    batches = fit_loop["epoch_loop.batch_progress"]["current"]
    if place:
        further = len(loader) - loader.batches_from(place) - batches["processed"]
        for count in batches:
            batches[count] += further
    if 0 < place < loader.steps:  # Lightning takes an epoch that max_steps cut off as over
        for epoch in fit_loop["epoch_progress"].values():
            epoch["processed"] = epoch["completed"] = epoch["started"] - 1


def loop_states(trainer: Trainer) -> dict[str, Any]:
    """Return the states of a Trainer's loops, as its checkpoints hold them."""
    names = ("fit_loop", "validate_loop", "test_loop", "predict_loop")
    return {name: getattr(trainer, name).state_dict() for name in names}
