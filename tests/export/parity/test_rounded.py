"""Float32 with every result rounded gives what kernels of 16 bits give."""

import pytest
import torch
from torch import nn

from lit_gelu.export.parity.rounded import RoundedTo


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("function", "is_exact"),
    [
        (nn.functional.gelu, False),
        (torch.sin, False),
        (lambda x: x * 3 + x, True),
        (lambda x: x.clone().mul_(1.1).add_(x), True),
        (lambda x: torch.softmax(x, -1), False),
        (lambda x: x.t()[1:].clone().reshape(-1)[::2] / 3, True),
        (lambda x: torch.max(x * 1.1, 1).values, True),
    ],
    ids=["gelu", "sin", "a sum", "in place", "softmax", "views", "two results"],
)
def test_values_are_those_of_the_dtype(dtype, function, is_exact):
    inputs = torch.randn(64, 32).to(dtype)
    with RoundedTo(dtype):
        made = function(inputs.float())
    assert made.dtype == torch.float32
    expected = function(inputs).float()
    # torch may compute erf, sin and exp by other polynomials in its loops of 16 bit: a value between two is rounded to
    # its other neighbour then, which happens once in some thousand.
    rounding = 0.0 if is_exact else torch.finfo(dtype).eps
    torch.testing.assert_close(made, expected, rtol=rounding, atol=rounding * torch.finfo(dtype).tiny)
    assert (made != expected).sum() <= made.numel() / 100


def test_integers_and_other_floats_are_left_alone():
    with RoundedTo(torch.bfloat16):
        assert (torch.arange(1000) + 1).sum() == 500500
        assert torch.full((2,), 0.1, dtype=torch.float64)[0] == 0.1
