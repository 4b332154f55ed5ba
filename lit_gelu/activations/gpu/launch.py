"""Starts the kernels of functions of one tensor, of any layout. Triton is imported with the first one."""

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

BLOCK = 1024
_OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}  # a Horner step is one instruction


@functools.cache
def _templates() -> ModuleType:
    """Import the kernels."""
    from lit_gelu.activations.gpu import templates

    return templates


@contextmanager
def _device_of(x: Tensor) -> Iterator[None]:
    """Make a tensor's device the current one, on which Triton starts kernels."""
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        with torch.cuda.device(x.device):
            yield
    else:
        yield


def dense(x: Tensor) -> Tensor:
    """Return a tensor without gaps and overlaps in memory, in the order of its strides: x itself where it is that."""
    return x if _is_dense(x) else x.contiguous()


def as_dense(x: Tensor) -> Tensor:
    """Return a tensor with the sizes and strides of ``dense(x)``, for which nothing is copied."""
    return x if _is_dense(x) else torch.empty(x.shape, device="meta")


def _is_dense(x: Tensor) -> bool:
    """Say whether a tensor has no gaps and overlaps in memory."""
    if x.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def laid_out_as(gradient: Tensor, x: Tensor) -> Tensor:
    """Return a gradient whose elements lie in memory as those of a dense x."""
    # Those of `sum` and of slices are expanded or strided; a flat kernel would read other elements, in silence.
    if gradient.stride() == x.stride():
        return gradient
    return torch.empty_like(x, dtype=gradient.dtype).copy_(gradient)


def unary_forward(x: Tensor, name: str, p0: float, p1: float) -> Tensor:
    """Return the function of this name of a tensor."""
    x = dense(x)
    y = torch.empty_like(x)
    flat("unary_forward", x, x, y, x.numel(), p0, p1, ACT=name)
    return y


def unary_backward(gradient: Tensor, x: Tensor, name: str, p0: float, p1: float) -> Tensor:
    """Return a gradient times the function's slope."""
    x = dense(x)
    by_x = torch.empty_like(x)
    flat("unary_backward", x, laid_out_as(gradient, x), x, by_x, x.numel(), p0, p1, ACT=name)
    return by_x


def zero_identity_forward(x: Tensor, seed: Tensor) -> Tensor:
    """Return x where it is kept and -0.0 where it is dropped; ``seed`` is one int64 on x's device."""
    x = dense(x)
    y = torch.empty_like(x)
    flat("zero_identity_forward", x, x, y, seed, x.numel())
    return y


def zero_identity_backward(gradient: Tensor, y: Tensor) -> Tensor:
    """Return the gradient where y was kept, else 0."""
    by_x = torch.empty_like(y)
    flat("zero_identity_backward", y, laid_out_as(gradient, y), y, by_x, y.numel())
    return by_x


def flat(kernel: str, on: Tensor, *arguments: Any, **constants: Any) -> None:
    """Start a kernel over all elements, in the order in which they lie in memory."""
    start(kernel, on, (math.ceil(on.numel() / BLOCK),), *arguments, **constants, BLOCK=BLOCK)


def start(kernel: str, on: Tensor, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Start a kernel on the device of a tensor; one without elements has nothing to compute."""
    if on.numel():
        with _device_of(on):
            getattr(_templates(), kernel)[grid](*arguments, **constants, **_OPTIONS)
