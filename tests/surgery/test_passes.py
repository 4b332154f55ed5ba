"""The passes of a sample leave no trace, and take it in every form."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lit_gelu import surgery
from lit_gelu.errors import SwapError

SAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def test_the_pass_leaves_no_trace():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5).eval()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return F.relu(self.drop(self.norm(x + torch.rand(())))) + float(__import__("random").random())

    import random

    model = Noisy()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    flags = [module.training for module in model.modules()]
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    surgery.find_sites(model, SAMPLE)
    surgery.coverage(model, SAMPLE)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == flags
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not nn.modules.module._global_forward_pre_hooks


def test_the_sample_is_not_overwritten():
    model, x = nn.Sequential(nn.ReLU(inplace=True)), SAMPLE.clone()
    surgery.swap(model, {"*": "silu"}, x).undo()
    surgery.coverage(model, x)
    assert torch.equal(x, SAMPLE)


def test_samples_of_every_form_and_a_failing_one():
    class Two(nn.Module):
        def forward(self, x, scale=1.0):
            return F.relu(x * scale)

    for sample in (SAMPLE, (SAMPLE, 2.0), [SAMPLE], {"x": SAMPLE, "scale": 2.0}):
        assert [site.name for site in surgery.find_sites(Two(), sample)] == [":relu"]
    with pytest.raises(SwapError):
        surgery.find_sites(Two(), {"y": SAMPLE})
