"""Decoding with a key-value cache: the file fed with its own cache, beside the module fed with its own."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lit_gelu.export.input_kinds import Indices, Kind, Mask, resized
from lit_gelu.export.inputs import PAST, PRESENT, Batch, Call, sum_of
from lit_gelu.export.runtime.model_file import Port

PROMPTS = (3, 1)  # places that the first call adds to an empty cache, in batches of one and two rows
STEPS = 8  # calls of one place behind it


@dataclass(frozen=True)
class Decoder:
    """How a file is called again and again: which outputs become which inputs, and which sizes grow.

    Args:
        call: A call of the module, with the file's batch axes.
        shapes: Of the file's inputs, with names of open sizes.
        places: Of the outputs by those of the inputs that they become.
        past: The name of the number of places that the cache holds.
        sequence: The name of the number of places that a call adds.
    """

    call: Call
    shapes: Sequence[Sequence[int | str | None]]
    places: Mapping[int, int]
    past: str
    sequence: str

    def calls(self, kinds: Mapping[int, Kind], rows: int, first: int) -> Iterator[Batch]:
        """Yield the inputs of a call with an empty cache, then of calls with one place more each."""
        generator = torch.Generator().manual_seed(0)
        length = 0
        for added in (first, *[1] * STEPS):
            tensors = resized(self.call, self.shapes, {self.past: length, self.sequence: added})
            tensors = self.call.selected(tensors, torch.arange(rows) % self.call.batch_size)
            yield tuple(self._drawn(i, t, kinds.get(i), generator) for i, t in enumerate(tensors))
            length += added

    def _drawn(self, place: int, tensor: Tensor, kind: Kind | None, generator: torch.Generator) -> Tensor:
        if isinstance(kind, Mask):  # all places are kept: what is masked at one step was there at another
            return torch.full_like(tensor, kind.kept)
        is_new = self.sequence in self.shapes[place]
        if isinstance(kind, Indices) and is_new:
            return kind.draw(tensor.shape, generator).to(tensor.dtype)
        if is_new and tensor.is_floating_point():
            return torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
        return tensor

    def outputs(
        self, run: Callable[[Batch], list[np.ndarray]], calls: Iterable[Batch]
    ) -> Iterator[tuple[Batch, list[np.ndarray]]]:
        """Yield inputs and outputs of calls, each with the cache that the one before returned."""
        y: list[np.ndarray] = []
        for batch in calls:
            tensors = list(batch)
            for place, output in self.places.items() if y else ():
                tensors[place] = torch.from_numpy(y[output])  # in float64 where that runs
            y = run(tuple(tensors))
            yield tuple(tensors), y


def decoder_of(call: Call, ports: Mapping[str, Port], outputs: Mapping[str, Port]) -> Decoder | None:
    """Return how a file decodes; ``None`` if it has no cache that grows."""
    names = {name: place for place, name in enumerate(outputs)}
    shapes = [list(port.shape) for port in ports.values()]
    places: dict[int, int] = {}
    growing: set[tuple[str, str]] = set()
    for place, (name, port) in enumerate(ports.items()):
        there = name.replace(PAST, PRESENT, 1)
        if not name.startswith(f"{PAST}.") or there not in names:
            continue
        places[place] = names[there]
        for size, after in zip(port.shape, outputs[there].shape, strict=False):
            if isinstance(size, str) and size != after and size in sum_of(after):
                growing.update((size, other) for other in sum_of(after) if other != size)
    if len(growing) != 1:
        return None
    past, sequence = growing.pop()
    return Decoder(call, shapes, places, past, sequence)
