"""The random numbers of every replica: a stream of its own, in the state in which the run alone would have it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from lit_gelu.replicas.masks import dropout_factors_


class Streams:
    """One generator a replica; it stands for torch's global generator of the run alone.

    Args:
        states: The state of torch's generator when each run begins, as ``torch.get_rng_state`` returns it.
    """

    def __init__(self, states: Sequence[Tensor]) -> None:
        self.generators = [torch.Generator() for _ in states]
        self.set_states(states)

    def states(self) -> list[Tensor]:
        """Return the present states, to be saved."""
        return [generator.get_state() for generator in self.generators]

    def set_states(self, states: Sequence[Tensor]) -> None:
        """Go on from states that were saved."""
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)

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
