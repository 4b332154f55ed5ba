"""Starts the kernels of functions whose parameters are tensors: one number each, or one for each channel."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lit_gelu.activations.gpu.launch import BLOCK, as_dense, dense, laid_out_as, start

SHORTEST = 512  # elements of a channel that lie side by side, below which most of a program would be idle
_MOST_PROGRAMS = 65_535  # in the second and third dimension of a grid
_MOST_ELEMENTS = 2**31 - 1  # of what a kernel counts in 32 bits
_BLOCKS = 4  # of a backward program, so that there are few partial sums
_WIDEST = 16 * BLOCK  # of the rows that short ones are joined to
_ROWS = (16, 64)  # fewest and most of a program; the fewer, the more partial sums
_ROWS_FROM = 2**19  # elements for each row of a program: an H200 then has four programs for each processor


class Layout(NamedTuple):
    """How channels lie in memory: ``[outer, channels, inner]``."""

    outer: int
    channels: int
    inner: int


def layout(x: Tensor, channel_dim: int, channels: int) -> Layout:
    """Return how the channels of a dense tensor lie; a single one is the whole tensor."""
    if channels == 1:
        return Layout(1, 1, x.numel())
    inner = x.stride(channel_dim)
    return Layout(x.numel() // (channels * inner) if x.numel() else 0, channels, inner)


def unsuited(x: Tensor, channel_dim: int, channels: int) -> str:
    """Return why the kernels do not take a layout; nothing if they do."""
    outer, channels, inner = layout(as_dense(x), channel_dim, channels)
    if inner == 1 and channels > 1:
        return "the kernels count channels in 32 bits" if channels > _MOST_PROGRAMS * BLOCK else ""
    if inner < SHORTEST:
        return f"{inner} elements of a channel side by side are less than {SHORTEST}"
    if inner > _MOST_ELEMENTS or max(outer, channels) > _MOST_PROGRAMS:
        return f"the kernels take {_MOST_PROGRAMS:,} channels and samples, and {_MOST_ELEMENTS:,} elements of each"
    return ""


def learned_forward(x: Tensor, p0: Tensor, p1: Tensor, name: str, channel_dim: int) -> Tensor:
    """Return the function of this name; parameters have one element, or one for each channel."""
    x = dense(x)
    p0, p1 = _same_size(p0, p1)
    y = torch.empty_like(x)
    outer, channels, inner = layout(x, channel_dim, p0.numel())
    if inner == 1 and channels > 1:
        joined = _joined(x.numel(), channels)
        p0, p1 = p0.repeat(joined.copies), p1.repeat(joined.copies)
        sizes = x.numel(), joined.copies * channels, joined.rows
        start("learned_forward_last", x, joined.grid, x, y, p0, p1, *sizes, ACT=name, BLOCK=BLOCK)
    else:
        grid = (math.ceil(inner / BLOCK), channels, outer)
        start("learned_forward", x, grid, x, y, p0, p1, inner, channels, ACT=name, BLOCK=BLOCK)
    return y


def learned_backward(
    gradient: Tensor, x: Tensor, p0: Tensor, p1: Tensor, name: str, channel_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients by x and, in float32, by both parameters."""
    x = dense(x)
    first, second = _same_size(p0, p1)
    gradient, by_x = laid_out_as(gradient, x), torch.empty_like(x)
    outer, channels, inner = layout(x, channel_dim, first.numel())
    if inner == 1 and channels > 1:
        joined = _joined(x.numel(), channels)
        first, second = first.repeat(joined.copies), second.repeat(joined.copies)
        sums = x.new_zeros((joined.grid[0], 2, joined.copies, channels), dtype=torch.float32)
        sizes = x.numel(), joined.copies * channels, joined.rows
        tensors = gradient, x, by_x, first, second, sums
        start("learned_backward_last", x, joined.grid, *tensors, *sizes, ACT=name, BLOCK=BLOCK)
        by_p0, by_p1 = sums.sum((0, 2))
    else:
        grid = (math.ceil(inner / (BLOCK * _BLOCKS)), channels, outer)
        sums = x.new_zeros((2, channels, outer, grid[0]), dtype=torch.float32)
        tensors = gradient, x, by_x, first, second, sums
        start("learned_backward", x, grid, *tensors, inner, channels, ACT=name, BLOCK=BLOCK, BLOCKS=_BLOCKS)
        by_p0, by_p1 = sums.sum((2, 3))
    return by_x, _summed(by_p0, p0), _summed(by_p1, p1)


def _same_size(p0: Tensor, p1: Tensor) -> tuple[Tensor, Tensor]:
    """Return both parameters in float32 with as many elements as the longer one, side by side."""
    size = (max(p0.numel(), p1.numel()),)
    return p0.float().expand(size).contiguous(), p1.float().expand(size).contiguous()


def _summed(by_channel: Tensor, parameter: Tensor) -> Tensor:
    """Return the sum over channels where they share the parameter."""
    return by_channel.sum_to_size(parameter.shape) if parameter.dim() else by_channel.sum()


class _Joined(NamedTuple):
    """How rows of channels are cut into programs: so many copies of the channels make a row that a program reads."""

    copies: int
    rows: int  # of a program
    grid: tuple[int, int]


def _joined(elements: int, channels: int) -> _Joined:
    """Return how to cut a tensor whose last dimension counts the channels."""
    copies = _copies(channels)
    width = copies * channels
    rows = min(max(elements // _ROWS_FROM, _ROWS[0]), _ROWS[1])
    return _Joined(copies, rows, (math.ceil(elements / (width * rows)), math.ceil(width / BLOCK)))


def _copies(channels: int) -> int:
    """Return how many rows are joined so that least of a program is idle, and rows begin at 16 elements if they can."""
    most = max(_WIDEST // channels, 1)
    aligned = 16 // math.gcd(channels, 16)
    choices = range(aligned, most + 1, aligned) if aligned <= most else range(1, most + 1)
    return min(choices, key=lambda copies: (math.ceil(copies * channels / BLOCK) * BLOCK / (copies * channels), copies))
