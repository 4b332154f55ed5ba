"""Linear layers whose terms are added one by one, against NumPy's running sums."""

import numpy as np
import torch
from torch import nn

from lit_gelu.export.parity import plain_loops
from lit_gelu.export.parity.plain_loops import PlainLoops


def layer(features, outputs, bias=True):
    torch.manual_seed(0)
    return nn.Linear(features, outputs, bias)


def added_one_by_one(inputs, module):
    terms = inputs.numpy()[..., None, :] * module.weight.detach().numpy()
    sums = np.cumsum(terms, -1, dtype=np.float32)[..., -1]
    return sums if module.bias is None else sums + module.bias.detach().numpy()


@torch.no_grad()
def test_terms_are_added_in_their_order():
    for shape, bias in (((7, 300), True), ((2, 3, 300), False), ((300,), True)):
        module, inputs = layer(300, 5, bias), 1e3 + torch.randn(shape)
        with PlainLoops():
            found = module(inputs)
        np.testing.assert_array_equal(found.numpy(), added_one_by_one(inputs, module))
        assert torch.allclose(module.double()(inputs.double()).float(), found, rtol=1e-3, atol=1.0)


@torch.no_grad()
def test_what_would_take_too_long_is_left(monkeypatch):
    module, inputs = layer(300, 5), torch.randn(7, 300)
    monkeypatch.setattr(plain_loops, "_MOST_TERMS", 7 * 300 * 5 - 1)
    with PlainLoops():
        found = module(inputs)
    assert torch.equal(found, module(inputs))
