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

from lit_gelu.errors import DataError, message_of

_MERSENNE_NUMBERS = 624  # of NumPy's generator, which reads on behind them if it is told that it is further


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

    def plain(self) -> dict[str, Any]:
        """Return the states as ``torch.load`` reads plain data."""
        (version, numbers, gauss), (kind, key, place, *rest) = self.python, self.numpy
        states = {
            "python": [version, list(numbers), gauss],
            "numpy": [kind, key.tolist(), place, *rest],
            "torch": self.torch,
        }
        return states if self.cuda is None else states | {"cuda": self.cuda}

    @classmethod
    def of_plain(cls, states: Any) -> Self:
        """Return the states that `plain` wrote; refuse damaged ones before anything is set."""
        # A CUDA state is left out where there is no such device.
        try:
            (version, numbers, gauss), (kind, key, place, *rest) = states["python"], states["numpy"]
            if not 0 <= place <= _MERSENNE_NUMBERS:
                raise ValueError(f"NumPy's place is {place}, of {_MERSENNE_NUMBERS} numbers")  # noqa: TRY301 - one remedy
            python, numpy = (version, tuple(numbers), gauss), (kind, np.array(key, dtype=np.uint32), place, *rest)
            cuda = states["cuda"].cpu() if "cuda" in states and torch.cuda.is_available() else None
            random.Random().setstate(python)  # noqa: S311 - as the global one, which is left alone
            np.random.RandomState().set_state(numpy)
            torch.Generator().set_state(states["torch"].cpu())
            if cuda is not None:
                torch.Generator("cuda").set_state(cuda)
            return cls(python, numpy, states["torch"].cpu(), cuda)
        except (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
            raise DataError(
                f"The random states of the checkpoint are damaged ({type(error).__name__}: {message_of(error)}). "
                "Resume from another checkpoint, or leave ExactResume out."
            ) from error

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
