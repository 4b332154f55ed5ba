"""Which runs of a grid are made together, as replicas of one net."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lit_gelu.errors import shown
from gelu_paper.errors import PaperArgumentError
from gelu_paper.jobs import CellGroup, together
from gelu_paper.protocol.cells import PRECISION, Cell

# The most runs of a task in a group: where more would leave the processor's caches, or make the last ones wait long.
# Tasks that gain nothing together (convolutions, or nets whose products are large) are not here: one run at a time.
MOST_IN_A_GROUP: Mapping[str, int] = {
    "lit_gelu.tasks.MNISTClassifier": 18,
    "lit_gelu.tasks.TweetTagger": 18,
    "lit_gelu.tasks.MNISTAutoencoder": 6,
}
# On a GPU a step of many runs takes hardly longer than one of few; memory bounds it: parameters x 16 bytes x runs.
MOST_ON_A_GPU: Mapping[str, int] = {
    "lit_gelu.tasks.MNISTClassifier": 120,
    "lit_gelu.tasks.TweetTagger": 120,
    "lit_gelu.tasks.MNISTAutoencoder": 36,
}
_DIFFERING = frozenset({"activation", "learning_rate", "keep"})  # arguments in which the runs of a group may differ
_TRAINER = frozenset({"max_epochs", "limit_val_batches", "precision"})  # arguments that a group's Trainer can have


@dataclass(frozen=True)
class GroupPlanner:
    """Puts runs together: so many as make groups for all workers, and not more than is good for the task."""

    workers: int
    most: int | None = None  # runs in a group; None leaves it to the task
    on_gpu: bool = False  # where runs with random numbers by key alone are made together

    def limit(self, cell: Cell) -> int:
        """Return how many runs like this one may be in a group; 1 if it is made alone."""
        good = (MOST_ON_A_GPU if self.on_gpu else MOST_IN_A_GROUP).get(cell.config["model"]["class_path"], 1)
        if self.on_gpu and not _fits_a_gpu(cell):
            return 1
        trainer = cell.config["trainer"]
        if set(trainer) - _TRAINER or trainer.get("precision") != PRECISION:
            return 1
        return good if self.most is None or good == 1 else self.most

    def jobs(self, cells: Sequence[Cell]) -> list[Cell | CellGroup]:
        """Return the runs, those together that can be, in the order of the first of each."""
        alike: dict[str, list[Cell]] = {}
        for cell in cells:
            alike.setdefault(_what_all_share(cell) if self.limit(cell) > 1 else cell.key, []).append(cell)
        parts = [part for same in alike.values() for part in self._parts(same)]
        places = {cell.key: place for place, cell in enumerate(cells)}
        parts.sort(key=lambda part: min(places[cell.key] for cell in part))
        return [together(tuple(part)) for part in parts]

    def _parts(self, cells: list[Cell]) -> Iterator[list[Cell]]:
        """Yield runs of about the same number, those with dropout by themselves as far as that goes."""
        # A group in which one run has dropout measures the training losses of all without it, a pass more in each step.
        by_noise = sorted(cells, key=lambda cell: _keep(cell) < 1)
        size = min(self.limit(cells[0]), math.ceil(len(cells) / self.workers))
        count = math.ceil(len(cells) / size)
        if count > self.workers:
            count = min(len(cells), math.ceil(count / self.workers) * self.workers)
        for number in range(count):
            part = by_noise[len(cells) * number // count : len(cells) * (number + 1) // count]
            yield sorted(part, key=self._place)

    def _place(self, cell: Cell) -> tuple[Any, ...]:
        """Return by what runs are in order in a group: activations in one stretch, on a GPU within those with noise."""
        return self.on_gpu and _keep(cell) < 1, cell.activation, cell.seed, _keep(cell)


def parse_replicas(text: str) -> int | None:
    """Read ``auto`` as ``None``, ``off`` as 1, and a number of runs in a group at most."""
    named = {"auto": None, "off": 1}
    if text in named:
        return named[text]
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 6 and int(text) > 0):
        raise PaperArgumentError(
            f"--replicas {shown(text)} given; accepted: auto, off, or how many runs are in a group at most."
        )
    return int(text)


def _fits_a_gpu(cell: Cell) -> bool:
    """Tell whether all random numbers of a run's steps are by key."""
    from lit_gelu import activations  # torch, a second that --help does without

    has_keys = _keep(cell) == 1 or cell.config["model"]["init_args"].get("noise") == "keys"
    spec = activations.registry.resolve(cell.activation)
    # Not `activations.info`, which computes what is not asked for: seconds for a grid.
    return has_keys and not activations.registry.entry(spec.name).facts_for(spec.arguments).stochastic


def _keep(cell: Cell) -> float:
    return float(cell.config["model"]["init_args"].get("keep", 1.0))


def _what_all_share(cell: Cell) -> str:
    """Return text that two cells have in common if and only if they may be in a group."""
    model = cell.config["model"]
    arguments = {name: value for name, value in model["init_args"].items() if name not in _DIFFERING}
    evaluations = cell.config["measurement"]["evaluations_per_epoch"]
    parts = [model["class_path"], arguments, cell.config["data"], cell.config["trainer"], evaluations]
    return json.dumps(parts, sort_keys=True)
