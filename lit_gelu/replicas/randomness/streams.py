"""The random numbers of every replica: a stream of its own, in the state in which the run alone would have it."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_gelu.data.resumable_loader import python_and_numpy_states, set_random_states
from lit_gelu.replicas.errors import NotReplicableError
from lit_gelu.replicas.randomness.dropout_factors import dropout_factors_

OtherStates = Mapping[str, Any]  # of Python's and NumPy's global generators, as plain data


class Streams:
    """One generator a replica; it stands for torch's global generator of the run alone.

    Args:
        states: The state of torch's generator when each run begins, as ``torch.get_rng_state`` returns it.
        others: Those of Python's and NumPy's global generators; none means the present ones.
    """

    def __init__(self, states: Sequence[Tensor], others: Sequence[OtherStates] = ()) -> None:
        self.generators = [torch.Generator() for _ in states]
        self.set_states(states)
        self._others: list[tuple[Any, Any]] = []
        self.set_others(others or [python_and_numpy_states()] * len(states))

    def seed(self, replica: int) -> int:
        """Return the seed that a replica's stream began with."""
        return self.generators[replica].initial_seed()

    def states(self) -> list[Tensor]:
        """Return the present states, to be saved."""
        return [generator.get_state() for generator in self.generators]

    def set_states(self, states: Sequence[Tensor]) -> None:
        """Go on from states that were saved."""
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)

    def others(self) -> list[OtherStates]:
        """Return the present states of Python's and NumPy's generators, to be saved."""
        found: list[OtherStates] = []
        for replica in range(len(self._others)):
            with self.whole_of(replica):
                found.append(python_and_numpy_states())
        return found

    def set_others(self, states: Sequence[OtherStates]) -> None:
        """Let Python's and NumPy's generators go on from states that were saved, all or none.

        Raises:
            CorruptDataError: If they are damaged.
        """
        read, of_torch = [], torch.get_rng_state()
        with others_as_they_were():
            for state in states:
                set_random_states({**state, "torch": of_torch})
                read.append(_of_python_and_numpy())
        self._others[: len(read)] = read

    @contextmanager
    def whole_of(self, replica: int) -> Iterator[None]:
        """Let a replica's Python's and NumPy's generators be the global ones, too, which takes ten times longer."""
        with others_as_they_were(), self.within_others(replica):
            yield

    @contextmanager
    def within_others(self, replica: int) -> Iterator[None]:
        """Do the same within `others_as_they_were`, for one replica after another."""
        _set_python_and_numpy(self._others[replica])
        try:
            with self.of(replica):
                yield
        finally:
            self._others[replica] = _of_python_and_numpy()

    @contextmanager
    def of(self, replica: int) -> Iterator[None]:
        """Let a replica's stream be the global one, for operations that take no generator."""
        before = torch.get_rng_state()
        torch.set_rng_state(self.generators[replica].get_state())
        try:
            yield
        finally:
            self.generators[replica].set_state(torch.get_rng_state())
            torch.set_rng_state(before)

    def dropout_factors(self, inputs: Tensor, chances: Sequence[float]) -> Tensor:
        """Return what dropout multiplies ``inputs``, ``[replicas, ...]``, with: drawn as ``nn.Dropout`` draws it.

        A chance of 0 or 1 draws nothing, as there. ``1 - chance`` is computed anew as torch does: it is not the
        ``keep`` that a user gave, which was subtracted from 1 before. Numbers are drawn in the order in which a
        replica's elements lie in memory, as there.
        """
        lie_in_order = inputs.is_contiguous() or inputs[0].is_contiguous()
        factors: Tensor | list[Tensor] = (
            torch.ones(inputs.shape, dtype=inputs.dtype, device=inputs.device)
            if lie_in_order
            else [torch.ones_like(own) for own in inputs]
        )
        for factor, chance, generator in zip(factors, chances, self.generators, strict=True):
            if chance > 0:
                dropout_factors_(factor, chance, generator)
        return factors if isinstance(factors, Tensor) else torch.stack(factors)


def _of_python_and_numpy() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()  # noqa: NPY002 - the global generator is what is meant


def _set_python_and_numpy(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002


@contextmanager
def others_as_they_were() -> Iterator[None]:
    """Put Python's and NumPy's global generators back on leaving."""
    before = _of_python_and_numpy()
    try:
        yield
    finally:
        _set_python_and_numpy(before)


@contextmanager
def without_other_draws(message: str) -> Iterator[None]:
    """Refuse code that draws from Python's or NumPy's global generator.

    Raises:
        NotReplicableError: With that message, if it has drawn.
    """
    python, numpy = _of_python_and_numpy()
    yield
    python_now, numpy_now = _of_python_and_numpy()
    if python != python_now or numpy[2:] != numpy_now[2:] or not np.array_equal(numpy[1], numpy_now[1]):
        raise NotReplicableError(message)


@contextmanager
def without_draws(message: str) -> Iterator[None]:
    """Refuse code that draws from any global generator, torch's too.

    Raises:
        NotReplicableError: With that message, if it has drawn.
    """
    before = torch.get_rng_state()
    with without_other_draws(message):
        yield
    if not torch.equal(before, torch.get_rng_state()):
        raise NotReplicableError(message)
