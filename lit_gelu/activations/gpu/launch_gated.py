"""Starts the kernels of gated functions: one half of a dimension through a function, times the other half."""

import math

import torch
from torch import Tensor

from lit_gelu.activations.gpu.launch import BLOCK, as_dense, dense, laid_out_as, start

SHORTEST = 512  # elements of a half that lie side by side, below which most of a program would be idle
_LARGEST = 2**30 - 1  # of a half; the kernels count both in 32 bits
_MOST_BLOCKS = 65_535  # in the second dimension of a grid


def half(x: Tensor, dim: int) -> int:
    """Return how many elements of a half of a dense tensor's dimension lie side by side."""
    return x.shape[dim] // 2 * x.stride(dim)


def unsuited(x: Tensor, dim: int) -> str:
    """Return why the kernels do not take a layout; nothing if they do."""
    n = half(as_dense(x), dim)
    if n < SHORTEST:
        return f"{n} elements of a half side by side are less than {SHORTEST}"
    if n > min(_LARGEST, _MOST_BLOCKS * BLOCK):
        return f"halves of more than {min(_LARGEST, _MOST_BLOCKS * BLOCK):,} elements are torch's"
    return ""


def gated_forward(x: Tensor, name: str, p0: float, dim: int, gate: int) -> Tensor:
    """Return the function of the half numbered ``gate`` times the other half."""
    x = dense(x)
    n = half(x, dim)
    y = halved(x, dim)
    start("gated_forward", y, _grid(x, n), x, y, n, p0, ACT=name, GATE=gate, BLOCK=BLOCK)
    return y


def gated_backward(gradient: Tensor, x: Tensor, name: str, p0: float, dim: int, gate: int) -> Tensor:
    """Return the gradient by x."""
    x = dense(x)
    n = half(x, dim)
    gradient, by_x = laid_out_as(gradient, halved(x, dim)), torch.empty_like(x)
    start("gated_backward", x, _grid(x, n), gradient, x, by_x, n, p0, ACT=name, GATE=gate, BLOCK=BLOCK)
    return by_x


def halved(x: Tensor, dim: int) -> Tensor:
    """Return an empty tensor for the output: laid out as a dense x, half as long in a dimension."""
    dim %= x.dim()
    shape = [size // 2 if i == dim else size for i, size in enumerate(x.shape)]
    outside = x.shape[dim] * x.stride(dim)  # what lies outside the dimension is half as far apart
    return x.new_empty_strided(shape, [stride // 2 if stride >= outside else stride for stride in x.stride()])


def _grid(x: Tensor, n: int) -> tuple[int, int]:
    """Return the numbers of programs: rows of two halves, and blocks of a half."""
    return x.numel() // (2 * n) if n else 0, math.ceil(n / BLOCK)
