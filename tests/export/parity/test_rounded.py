"""Float32 with every result rounded gives what kernels of 16 bits give."""

import pytest
import torch
from torch import nn

from lit_gelu.export.parity.rounded import RoundedTo


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "function",
    [
        nn.functional.gelu,
        torch.sin,
        lambda x: x * 3 + x,
        lambda x: x.clone().mul_(1.1).add_(x),
        lambda x: torch.softmax(x, -1),
        lambda x: x.t()[1:].clone().reshape(-1)[::2] / 3,
        lambda x: torch.max(x * 1.1, 1).values,
    ],
    ids=["gelu", "sin", "a sum", "in place", "softmax", "views", "two results"],
)
def test_values_are_those_of_the_dtype(dtype, function):
    inputs = torch.randn(64, 32).to(dtype)
    with RoundedTo(dtype):
        made = function(inputs.float())
    assert made.dtype == torch.float32
    torch.testing.assert_close(made, function(inputs).float(), rtol=0, atol=0)


def test_integers_and_other_floats_are_left_alone():
    with RoundedTo(torch.bfloat16):
        assert (torch.arange(1000) + 1).sum() == 500500
        assert torch.full((2,), 0.1, dtype=torch.float64)[0] == 0.1
