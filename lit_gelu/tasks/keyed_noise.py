"""Random numbers by key: each a function of seed, layer and step alone, the same on every device and in any order.

The generator is Philox4x64-10 (Salmon and others 2011, "Parallel random numbers: as easy as 1, 2, 3"), which NumPy has
for the CPU and Triton for CUDA. Element ``e`` of a tensor belongs to the 32-bit word ``e % 8``, the lower half of a
64-bit word first, of the block with the key ``(seed, site)`` and the counter ``(1 + e // 8, step, rank, 0)``.
"""

import functools
import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_WORDS = 2**32
_WHOLE = 2**64


class Key(NamedTuple):
    """What says which random numbers a tensor is given.

    Args:
        seed: Of the run, 0 to 2**64 - 1, or the same as a signed number.
        site: The number of the layer.
        step: The number of the training step.
        rank: Of the process, where several share a run.
    """

    seed: int
    site: int
    step: int
    rank: int = 0


class _Generator(threading.local):
    """NumPy's generator, told before each use where to begin; one a thread."""

    def __init__(self) -> None:
        self.philox = np.random.Philox(key=0)
        self.counter, self.key = np.zeros(4, dtype=np.uint64), np.zeros(2, dtype=np.uint64)
        place = {"counter": self.counter, "key": self.key}
        state: dict[str, Any] = {"bit_generator": "Philox", "state": place, "buffer": np.zeros(4, dtype=np.uint64)}
        self.state: Any = state | {"buffer_pos": 4, "has_uint32": 0, "uinteger": 0}


_generator = _Generator()


def words(key: Key, count: int) -> NDArray[np.uint32]:
    """Return so many numbers from 0 to 2**32 - 1."""
    seed, site, step, rank = key
    # NumPy counts up before it computes a block: its counter 0 is the block 1.
    _generator.counter[1], _generator.counter[2] = step % _WHOLE, rank
    _generator.key[0], _generator.key[1] = seed % _WHOLE, site
    _generator.philox.state = _generator.state
    drawn: NDArray[np.uint64] = _generator.philox.random_raw(-(-count // 2))
    return drawn.view(np.uint32)[:count]


class Kept(NamedTuple):
    """How dropout reads a word: what is up to ``highest`` is kept and multiplied with ``scale``."""

    highest: int
    scale: float


def kept(chance: float) -> Kept:
    """Return it for a chance to drop; chances are multiples of ``2**-32``."""
    keep = 1 - chance
    return Kept(max(round(keep * _WORDS) - 1, 0), 1 / keep if keep else 0.0)


class SharedFactors:
    """What dropout multiplies with by key, in memory as long as it is asked for several times.

    Args:
        most: How many elements are held, of all factors together.
    """

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        self._factors: dict[tuple[Key, float], NDArray[Any]] = {}

    def of(self, key: Key, chance: float, place: NDArray[Any]) -> NDArray[Any]:
        """Return factors of the shape and type of an array, to which they are written if they are not held."""
        factors = self._factors.get((key, chance))
        if factors is not None and factors.shape == place.shape and factors.dtype == place.dtype:
            return factors
        if self.held + place.size <= self.most:
            place = self._factors[key, chance] = np.empty_like(place)
            self.held += place.size
        highest, scale = kept(chance)
        mask = words(key, place.size) <= np.uint32(highest)
        np.multiply(mask.reshape(place.shape), np.float32(scale), out=place)
        return place

    def clear(self) -> None:
        """Hold none."""
        self._factors.clear()
        self.held = 0


def dropout_factors(shape: Sequence[int], keys: Sequence[Key], chances: Sequence[float]) -> Tensor:
    """Return what dropout multiplies ``[rows, ...]`` with, float32 on the CPU: each row's by its own key and chance.

    A chance of 0 draws nothing, and rows with the same key and chance have one mask, which is drawn once.
    """
    factors = np.empty((len(keys), math.prod(shape[1:])), dtype=np.float32)
    shared = SharedFactors(factors.size if len(set(keys)) < len(keys) else 0)
    for row, key, chance in zip(factors, keys, chances, strict=True):
        found = 1 if chance == 0 else shared.of(key, chance, row)
        if found is not row:
            row[:] = found
    return torch.from_numpy(factors).view(*shape)


class DeviceKeys(NamedTuple):
    """What the kernel reads for every row: ``[rows]`` each, on its device."""

    seeds: Tensor
    steps: Tensor  # one more than the number of the step: how many there were when this one had begun
    highest: Tensor
    scales: Tensor


@functools.lru_cache(maxsize=256)
def readings(chances: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ``highest`` and ``scale`` of every row for the kernel."""
    found = [kept(chance) for chance in chances]
    highest = torch.from_numpy(np.array([reading.highest for reading in found], dtype=np.uint32).view(np.int32))
    return highest.to(device), torch.tensor([reading.scale for reading in found], device=device)


class KernelDropout(torch.autograd.Function):
    """Dropout of ``[rows, ...]`` on a CUDA device; the gradient's mask is computed again, not kept."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, rows: DeviceKeys, site: int, rank: int) -> Tensor:
        """Drop some of the inputs."""
        ctx.rows, ctx.place = rows, (site, rank)
        return launch(inputs, rows, site, rank)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Drop the same of the gradient."""
        return launch(gradients[0], ctx.rows, *ctx.place), None, None, None


BLOCK = 1024


def launch(inputs: Tensor, rows: DeviceKeys, site: int, rank: int) -> Tensor:
    """Start the kernel."""
    from lit_gelu.tasks import keyed_kernels

    inputs = inputs.contiguous()
    outputs = torch.empty_like(inputs)
    elements = inputs[0].numel()
    if inputs.numel():
        grid = (-(-elements // BLOCK), len(inputs))
        keyed_kernels.keyed_dropout[grid](inputs, outputs, *rows, elements, site, rank, BLOCK=BLOCK)
    return outputs
