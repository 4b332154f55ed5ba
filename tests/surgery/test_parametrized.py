"""Calls in modules that ``torch.nn.utils.parametrize`` gives a class: swapped before that, and refused behind it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from lit_gelu import surgery
from lit_gelu.errors import SwapError

SAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


class Layer(nn.Linear):
    def forward(self, x):
        return F.gelu(torch.tanh(F.linear(x, self.weight, self.bias)))


@pytest.mark.parametrize("how", [parametrizations.weight_norm, parametrizations.orthogonal])
def test_a_swap_before_it_lasts_and_one_behind_it_is_refused(how):
    torch.manual_seed(0)
    model = Layer(4, 4)
    surgery.swap(model, {"*:gelu": "silu"}, SAMPLE)
    how(model)
    expected = F.silu(torch.tanh(F.linear(SAMPLE, model.weight, model.bias)))
    assert torch.equal(model(SAMPLE), expected)
    with pytest.raises(SwapError, match="parametrize"):
        surgery.swap(how(Layer(4, 4)), {"*:gelu": "silu"}, SAMPLE)
    parametrize.remove_parametrizations(model, "weight")
    torch.testing.assert_close(model(SAMPLE), expected)
