"""Eight truth values in a byte, against numpy."""

import numpy as np
import pytest
import torch

from lit_gelu.activations.numerics.bits import packed, unpacked


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 15, 64, 65, 1001])
def test_they_come_back(count):
    values = torch.rand(count, generator=torch.Generator().manual_seed(count)) < 0.5
    found = packed(values)
    assert found.numel() == -(-count // 8)
    assert int(np.unpackbits(found.numpy()).sum()) == int(values.sum())
    assert torch.equal(unpacked(found, count).bool(), values)


def test_they_are_taken_in_the_order_in_which_they_lie_in_memory():
    values = torch.rand(4, 6, generator=torch.Generator().manual_seed(0)) < 0.5
    assert torch.equal(packed(values.t()), packed(values))
