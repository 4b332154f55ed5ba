"""`Blend`: the share of the new activation, in every dtype."""

import pytest
import torch
from torch import nn

from lit_gelu import surgery
from lit_gelu.surgery.blend import Annealing


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_share_has_the_digits_of_the_module(dtype):
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).to(dtype), torch.randn(5, 3, dtype=dtype)
    before = model[1]
    surgery.swap(model, {"1": "gelu"})
    annealing = Annealing(model, [(("1",), before, model[1])])
    annealing.set_progress(0.19)
    z = model[0](x)
    share = torch.tensor(0.19, dtype=dtype)
    assert torch.equal(model(x), (1 - share) * z.relu() + share * nn.functional.gelu(z))
