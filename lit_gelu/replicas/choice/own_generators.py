"""Generators of random numbers that a data module has of its own."""

import random
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule


class OwnGenerators:
    """The generators that a data module has of its own, which every run is to find as the first one did."""

    def __init__(self, data: LightningDataModule) -> None:
        self._found: list[tuple[Any, Any]] = []
        for value in vars(data).values():
            if isinstance(value, torch.Generator):
                self._found.append((value.set_state, value.get_state()))
            elif isinstance(value, random.Random):  # noqa: S311 - a user's, as it is
                self._found.append((value.setstate, value.getstate()))
            elif isinstance(value, np.random.Generator):
                self._found.append((partial(setattr, value.bit_generator, "state"), value.bit_generator.state))
            elif isinstance(value, np.random.RandomState):
                self._found.append((value.set_state, value.get_state()))

    def put_back(self) -> None:
        """Let them be as they were."""
        for put, state in self._found:
            put(state)
