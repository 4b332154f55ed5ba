"""Sampling whole rows of an activation's input.

A row holds every channel, so that no channel can be left out: strided elements of a [tokens, 1024] tensor fall on as
few as 8 of its channels when the stride is a multiple of 128.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from lit_gelu.curvature.activation.statistics import accumulation_dtype

SampleRows = int | Literal["auto", "sparse"] | None


def count_rows(x: Tensor, *, whole_examples: bool = False, channels: int | None = None) -> int:
    """Count the rows of an activation's input.

    A row is one channel vector: ``x[i]`` of ``[N, C]``, ``x[i, t]`` of ``[N, T, C]``, and ``x[n, :, h, w]`` of the
    convolutional ``[N, C, H, W]`` (all shapes of four and more dimensions), unless ``channels`` says otherwise. In a
    layout with the channels elsewhere a row is another slice; drawn at random, it still represents all elements evenly.

    Args:
        x: The input.
        whole_examples: Whether a row is ``x[i]``, a whole example, whatever the number of dimensions.
        channels: The dimension that counts the channels, where it is known.

    Returns:
        The number of rows; elements count as rows if there is one dimension or none.

    Example:
        >>> count_rows(torch.zeros(32, 16, 8, 8)), count_rows(torch.zeros(32, 16, 8, 8), whole_examples=True)
        (2048, 32)
    """
    return math.prod(_row_shape(x, whole_examples=whole_examples, channels=channels))


def draw_rows(count: int, rows: int, generator: torch.Generator) -> Tensor:
    """Draw row numbers: one, uniformly, from each of ``rows`` equal stretches of ``range(count)``.

    Each row is expected ``rows / count`` times, so means over the drawn rows are unbiased; the stretches spread the
    sample over the whole batch, which independent draws do not.

    Args:
        count: How many rows there are.
        rows: How many to draw, at most ``count``.
        generator: Where the random numbers come from; its device is that of the result.

    Returns:
        Row numbers in rising order, int64, shape ``[rows]``; neighbours may coincide.

    Example:
        >>> draw_rows(1000, 4, torch.Generator().manual_seed(0)) // 250
        tensor([0, 1, 2, 3])
    """
    device = generator.device
    dtype = accumulation_dtype(device)
    start = torch.arange(rows, device=device, dtype=dtype)
    position = start + torch.rand(rows, generator=generator, device=device, dtype=dtype)
    return spread_rows(count, position)


def spread_rows(count: int, position: Tensor) -> Tensor:
    """Turn positions, uniform in ``[i, i + 1)``, into rising row numbers: one of each equal stretch of rows."""
    return (position * (count / len(position))).long().clamp_(max=count - 1)


def rows_for(x: Tensor, elements: int, *, whole_examples: bool = False, channels: int | None = None) -> int:
    """Return how many rows hold about so many elements; at least 8: no channel is judged by a single element."""
    width = x.numel() // max(1, count_rows(x, whole_examples=whole_examples, channels=channels))
    return max(8, elements // max(1, width))


def take_rows(x: Tensor, index: Tensor, *, whole_examples: bool = False, channels: int | None = None) -> Tensor:
    """Copy rows of an activation's input.

    Args:
        x: The input.
        index: Row numbers below `count_rows`, shape ``[rows]``.
        whole_examples: As in `count_rows`.
        channels: As in `count_rows`.

    Returns:
        A new tensor ``[rows, C]``, or ``[rows, ...]`` with the shape of the examples.

    Example:
        >>> x = torch.arange(2 * 3 * 1 * 2.0).reshape(2, 3, 1, 2)
        >>> take_rows(x, torch.tensor([1, 2]))
        tensor([[ 1.,  3.,  5.],
                [ 6.,  8., 10.]])
    """
    dims = x.dim()
    if dims == 0:
        return x.expand(index.shape).clone()
    if dims <= 2 or whole_examples:
        return x.index_select(0, index)
    dim = _dim_of_rows(dims, channels)
    if dim == dims - 1 and x.is_contiguous():
        return x.view(-1, x.shape[-1]).index_select(0, index)
    x = x.movedim(dim, -1)
    return x[_unravel(index, x.shape[:-1])]


def _row_shape(x: Tensor, *, whole_examples: bool, channels: int | None) -> tuple[int, ...]:
    """Return the sizes of the dimensions that number the rows."""
    shape = tuple(x.shape)
    if whole_examples or len(shape) < 2:
        return shape[:1]
    dim = _dim_of_rows(len(shape), channels)
    return (*shape[:dim], *shape[dim + 1 :])


def _dim_of_rows(dims: int, channels: int | None) -> int:
    """Return the dimension along which a row lies."""
    if channels is not None and dims > 2:
        return channels
    return 1 if dims >= 4 else dims - 1


def _unravel(index: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Return one index a dimension, by arithmetic on the device (``torch.unravel_index`` copies from the host)."""
    parts: list[Tensor] = []
    for size in reversed(shape[1:]):
        parts.append(index % size)
        index = index.div(size, rounding_mode="floor")
    return (index, *reversed(parts))
