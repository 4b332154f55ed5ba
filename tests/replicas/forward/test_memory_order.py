"""The order of elements in memory, against what torch makes like a tensor."""

import pytest
import torch

from lit_gelu.replicas.forward.memory_order import joined_as_they_lie, memory_order


def tensors():
    whole = torch.randn(3, 4, 5, 2)
    return {
        "plain": whole,
        "transposed": whole.transpose(1, 2),
        "permuted": whole.permute(2, 0, 3, 1),
        "channels last": whole.contiguous(memory_format=torch.channels_last),
        "strided": whole.transpose(0, 2)[:, ::2],
        "expanded": whole[:, :1].expand(3, 4, 5, 2),
        "of one": whole[:, :1].transpose(0, 1),
    }


@pytest.mark.parametrize("name", tensors())
def test_the_order_is_that_of_what_torch_makes_like_it(name):
    tensor = tensors()[name]
    order = memory_order(tensor) or tuple(range(tensor.ndim))
    numbered = torch.empty_like(tensor)
    numbered.as_strided((tensor.numel(),), (1,)).copy_(torch.arange(tensor.numel()))
    assert torch.equal(numbered.permute(order).flatten(), torch.arange(tensor.numel()).float())


@pytest.mark.parametrize("name", tensors())
def test_what_is_joined_lies_as_its_parts(name):
    part = tensors()[name]
    parts = [part.unsqueeze(0), torch.empty_like(part).copy_(2 * part).unsqueeze(0)]
    joined = joined_as_they_lie(parts)
    assert torch.equal(joined, torch.cat(parts))
    assert memory_order(joined[1]) == memory_order(torch.empty_like(part))
