"""Building the members of a group, each as its run alone would be."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import LightningModule, seed_everything
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor

from lit_gelu.data.resumable_loader import python_and_numpy_states
from lit_gelu.replicas.errors import ReplicaArgumentError
from lit_gelu.replicas.randomness.streams import OtherStates

_NO_LETTERS = re.compile(r"[^\w.,=+()-]")
_LONGEST = 150  # of a key: a file's name has 255 bytes at most
_SEED_VARIABLES = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS")


@dataclass(frozen=True)
class Member:
    """A module of a group, and the states of the global generators with which its run alone begins.

    Args:
        module: As its constructor left it.
        stream: The state of torch's generator right afterwards, as ``torch.get_rng_state`` returns it.
        seed: What ``seed_everything`` was given before.
        arguments: Those of the constructor.
        name: What the replica is called; ``None`` means its arguments and its seed.
        others: The states of Python's and NumPy's global generators with which its run alone begins; none means those
            that ``seed_everything`` leaves.
    """

    module: LightningModule
    stream: Tensor
    seed: int
    arguments: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    others: OtherStates = field(default_factory=dict)

    def other_states(self) -> OtherStates:
        """Return the states of Python's and NumPy's global generators with which its run alone begins."""
        if self.others:
            return self.others
        with seeded(self.seed):
            return python_and_numpy_states()


def keys_of(members: Sequence[Member]) -> list[str]:
    """Return what every replica is called, each otherwise, in letters that a file's name may have."""
    keys: list[str] = []
    for member in members:
        named = [*member.arguments.items(), ("seed", member.seed)]
        text = ",".join(f"{name}={_text(value)}" for name, value in named) if member.name is None else member.name
        key = _NO_LETTERS.sub("_", text)[:_LONGEST]
        same = sum(other == key or other.startswith(f"{key}~") for other in keys)
        keys.append(f"{key}~{same + 1}" if same else key)
    return keys


def _text(value: Any) -> str:
    shown: Any = type(value).__repr__
    return str(getattr(value, "__name__", type(value).__name__ if shown is object.__repr__ else value))


def build_members(
    build: Callable[..., LightningModule], cells: Sequence[Mapping[str, Any]], seeds: Sequence[int] | None = None
) -> list[Member]:
    """Build a module for every cell under its own seed; the global generators are as they were afterwards.

    Args:
        build: The class of the modules, or a function that returns one.
        cells: The arguments for every one.
        seeds: The seed for every one, as ``seed_everything`` takes it before a run alone; ``None`` means 0 for all.

    Returns:
        The members, in the order of the cells.

    Raises:
        ReplicaArgumentError: If there are no cells, or as many seeds are not given.
    """
    seeds = [0] * len(cells) if seeds is None else list(seeds)
    if not cells or len(seeds) != len(cells):
        raise ReplicaArgumentError(
            f"{len(cells)} cells and {len(seeds)} seeds given. Give at least one cell, and a seed for each, or None."
        )
    with seeded(seeds[0]):  # once for all: putting generators back takes as long as some nets where one is a GPU's
        members = [_built(build, cell, seed) for cell, seed in zip(cells, seeds, strict=True)]
    owners: dict[int, int] = {}
    for number, member in enumerate(members):
        parts = _trained_parts(member.module)
        if common := parts.keys() & owners.keys():
            other = min(owners[part] for part in common)
            shared = shared_parts(members[other].module, member.module)
            raise ReplicaArgumentError(
                f"Members {other} and {number} have {', '.join(map(repr, shared[:3]))} in common: build= puts the same "
                "module into all of them, and their runs would train it together. Build or copy it for each."
            )
        owners |= dict.fromkeys(parts, number)
    return members


def shared_parts(one: LightningModule, other: LightningModule) -> list[str]:
    """Return the names of parameters that are trained, and of modules with buffers, that are another module's too."""
    theirs = _trained_parts(other)
    return [name for part, name in _trained_parts(one).items() if part in theirs]


def _trained_parts(module: LightningModule) -> dict[int, str]:
    """Return the names of what training changes, by identity: parameters, and modules with buffers."""
    parameters = {id(p): name for name, p in module.named_parameters() if p.requires_grad}
    modules = module.named_modules()
    return parameters | {id(part): name for name, part in modules if list(part.buffers(recurse=False))}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run as a process does that begins with ``seed_everything``; generators and variables are put back afterwards."""
    before, failed = {name: os.environ.get(name) for name in _SEED_VARIABLES}, None
    try:
        with isolate_rng():  # which puts nothing back where an error ends it
            try:
                seed_everything(seed, verbose=False)
                yield
            except BaseException as error:  # noqa: BLE001 - raised again below
                failed = error
        if failed is not None:
            raise failed
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _built(build: Callable[..., LightningModule], cell: Mapping[str, Any], seed: int) -> Member:
    seed_everything(seed, verbose=False)
    module = build(**cell)
    return Member(module, torch.get_rng_state(), seed, dict(cell), others=python_and_numpy_states())
