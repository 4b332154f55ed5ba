"""`RandomState`: where a run is in the random numbers of Python, NumPy and torch."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from lightning.pytorch import seed_everything
from torch import Tensor


@dataclass
class RandomState:
    """The states of the global generators of Python, NumPy and torch, at one place of one run."""

    python: Any
    numpy: Any
    torch: Tensor
    cuda: Tensor | None = None

    @classmethod
    def now(cls, *, in_torch_alone: bool = False) -> Self:
        """Return the present states; those of torch alone take a tenth of the time."""
        python = None if in_torch_alone else random.getstate()
        numpy = None if in_torch_alone else np.random.get_state()  # noqa: NPY002 - the global one
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
        return cls(python, numpy, torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Let the global generators go on from here."""
        if self.python is not None:
            random.setstate(self.python)
            np.random.set_state(self.numpy)  # noqa: NPY002 - the global one
        torch.set_rng_state(self.torch)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda)

    @contextmanager
    def going_on(self, *, in_torch_alone: bool = False) -> Iterator[None]:
        """Draw from this run's numbers within the context; the global generators are as they were behind it."""
        outside = self.now(in_torch_alone=in_torch_alone)
        (replace(self, python=None) if in_torch_alone else self).restore()
        try:
            yield
        finally:
            for name, state in vars(self.now(in_torch_alone=in_torch_alone)).items():
                if state is not None:
                    setattr(self, name, state)
            outside.restore()

    def __eq__(self, other: object) -> bool:
        """Tell whether both would draw the same numbers on the CPU."""
        return isinstance(other, RandomState) and bool(
            self.python == other.python
            and torch.equal(self.torch, other.torch)
            and all(np.array_equal(mine, its) for mine, its in zip(self.numpy, other.numpy, strict=True))
        )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run as a process does that begins with ``seed_everything``; generators and variables are put back behind it."""
    variables = {name: os.environ.get(name) for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS")}
    outside = RandomState.now()
    try:
        seed_everything(seed, verbose=False)
        yield
    finally:
        outside.restore()
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
