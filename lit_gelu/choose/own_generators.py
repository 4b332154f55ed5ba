"""Generators of random numbers that a data module has of its own."""

import random
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule


class OwnGenerators:
    """The generators that a data module has of its own, which every run is to find as the first one did.

    Args:
        data: The data module, before any loader has drawn.
    """

    def __init__(self, data: LightningDataModule) -> None:
        self._known: dict[int, Any] = {}  # with the generators: another one would get the number of one that went
        self._found: list[tuple[Any, Any]] = []
        self.note(data)

    def note(self, data: LightningDataModule) -> None:
        """Take in generators that were not there before, as they are now: ``setup`` may make some."""
        for value in vars(data).values():
            found = None if id(value) in self._known else _setter_and_state(value)
            if found is not None:
                self._known[id(value)] = value
                self._found.append(found)

    def put_back(self) -> None:
        """Let them be as they were."""
        for put, state in self._found:
            put(state)


def _setter_and_state(value: Any) -> tuple[Any, Any] | None:
    """Return what sets a generator's state, and its state; ``None`` of what is no generator."""
    if isinstance(value, torch.Generator):
        return value.set_state, value.get_state()
    if isinstance(value, random.Random):  # noqa: S311 - a user's, as it is
        return value.setstate, value.getstate()
    if isinstance(value, np.random.Generator):
        return partial(setattr, value.bit_generator, "state"), value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.set_state, value.get_state()
    return None
