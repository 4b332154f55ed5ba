"""Products of two batches by one call, where each row comes out as of its batch alone."""

import functools

import torch
from torch import Tensor


def lying_behind(first: Tensor, second: Tensor) -> Tensor | None:
    """Return ``[2 * batch, width]`` of two batches, if the second one lies right behind the first one in memory."""
    are_rows = first.shape == second.shape and first.is_contiguous() and second.is_contiguous()
    is_behind = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr() and (
        second.storage_offset() == first.storage_offset() + first.numel()
    )
    return first.as_strided((2 * len(first), first.shape[1]), (first.shape[1], 1)) if are_rows and is_behind else None


@functools.cache
def rows_are_those_alone(batch: int, fed: int, width: int, dtype: torch.dtype, has_bias: bool, threads: int) -> bool:  # noqa: ARG001
    """Tell whether this processor's library computes the first rows of twice as many as it computes them alone."""
    # Which way it goes depends on sizes and on the number of threads, and not on the numbers: so random ones tell.
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2 * batch, fed, dtype=dtype, generator=generator)
    turned = torch.randn(width, fed, dtype=dtype, generator=generator).t()
    outputs = torch.empty(2 * batch, width, dtype=dtype)
    if not has_bias:
        return torch.equal(torch.mm(inputs, turned, out=outputs)[:batch], inputs[:batch].clone() @ turned)
    bias = torch.randn(width, dtype=dtype, generator=generator)
    torch.addmm(bias.expand_as(outputs), inputs, turned, out=outputs)
    return torch.equal(outputs[:batch], torch.addmm(bias, inputs[:batch].clone(), turned))
