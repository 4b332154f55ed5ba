"""What a member's dropout layers multiply with in written steps: drawn from its generator, or by key."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from lit_gelu.replicas.randomness.dropout_factors import dropout_factors_
from lit_gelu.tasks.keyed_dropout import KeyedDropout
from lit_gelu.tasks.keyed_noise import Key, SharedFactors


class Factors(Protocol):
    """What a member's dropout layers multiply with, in written steps."""

    def begin(self, steps: int) -> None:
        """Say how many steps are to come."""
        ...

    def of(self, layer: int) -> Any:
        """Return the factors of a layer, as an array; the first one's are those of the next step."""
        ...


class FactorsAhead:
    """The factors of a member's layers for some steps at once, in the order in which single steps draw them.

    Args:
        chance: To drop an element, in all of the layers.
        generator: The member's, from which nothing else is drawn meanwhile.
        shapes: Those of the layers' outputs.
        factors: Where they go, ``[steps, elements of all layers]``.
        words: Integers of the same shape.
    """

    def __init__(
        self,
        chance: float,
        generator: torch.Generator,
        shapes: Sequence[tuple[int, int]],
        factors: Tensor,
        words: Tensor,
    ) -> None:
        self.chance, self.generator, self.factors, self.words = chance, generator, factors, words
        sizes = [math.prod(shape) for shape in shapes]
        self.parts = [
            [part.view(shape).numpy() for part, shape in zip(torch.split(row, sizes), shapes, strict=True)]
            for row in factors
        ]
        self.left = self.place = self.drawn = 0

    def begin(self, steps: int) -> None:
        """Say how many steps are to come: no more is drawn than these need."""
        self.left, self.place, self.drawn = steps, 0, 0

    def of(self, layer: int) -> Any:
        """Return the factors of a layer, as an array; the first one's are those of the next step."""
        if layer == 0:
            self.place += 1
            if self.place >= self.drawn:
                self.place, self.drawn = 0, min(self.left, len(self.factors))
                self.left -= self.drawn
                some = slice(self.drawn)
                dropout_factors_(self.factors[some], self.chance, self.generator, self.words[some])
        return self.parts[self.place][layer]


class KeyedFactors:
    """The factors of a member's `KeyedDropout` layers, see `Factors`.

    Args:
        layers: Those with a chance above 0; they count the steps.
        places: Where a layer's factors go, if no other member asks for them.
        shared: The factors that members have in common.
    """

    def __init__(self, layers: Sequence[KeyedDropout], places: Sequence[Tensor], shared: SharedFactors) -> None:
        self.layers, self.shared = layers, shared
        self.places = [place.numpy() for place in places]
        self.steps = [layer.step for layer in layers]

    def begin(self, steps: int) -> None:  # noqa: ARG002 # nothing is drawn ahead
        """Look which step is the next one."""
        self.next = [(int(layer.seed), layer.site, int(layer.step), float(layer.p)) for layer in self.layers]
        self.made = 0

    def of(self, layer: int) -> Any:
        """Return the factors of a layer, as an array; the first one's are those of the next step."""
        if layer == 0:
            self.made += 1
            torch._foreach_add_(self.steps, 1)
        seed, site, first, chance = self.next[layer]
        return self.shared.of(Key(seed, site, first + self.made - 1), chance, self.places[layer])


def in_common(layers: Sequence[KeyedDropout]) -> set[int]:
    """Return the seeds that several layers with a chance above 0 have."""
    counts = Counter(int(layer.seed) for layer in layers if layer.p > 0)
    return {seed for seed, count in counts.items() if count > 1}
