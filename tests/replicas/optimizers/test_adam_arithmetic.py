"""Adam in few calls against `torch.optim.Adam`."""

import pytest
import torch

from lit_gelu.replicas.optimizers import adam_arithmetic
from lit_gelu.replicas.optimizers.adam_arithmetic import AdamPiece, AdamSettings, ends_are_as_the_rest


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("given", [{}, {"weight_decay": 0.1}, {"maximize": True, "betas": (0.0, 0.9), "eps": 1e-3}])
def test_steps_are_those_of_torch(dtype, kind, given):
    generator = torch.Generator().manual_seed(0)
    value = torch.nn.Parameter(torch.randn(517, dtype=dtype, generator=generator))
    optimizer = kind([value], lr=0.01, **given)
    numbers = [value.detach().clone(), *(torch.zeros_like(value.detach()) for _ in range(4))]
    own, gradient, mean, square, scratch = numbers
    piece = AdamPiece(own, mean, square, scratch)
    for step in range(1, 5):
        value.grad = torch.randn(517, dtype=dtype, generator=generator)
        gradient.copy_(value.grad)
        optimizer.step()
        piece.adam(gradient, AdamSettings.of(optimizer.param_groups[0], step))
        state = optimizer.state[value]
        assert torch.equal(own, value)
        assert torch.equal(mean, state["exp_avg"])
        assert torch.equal(square, state["exp_avg_sq"])


def test_a_processor_with_another_formula_at_ends_is_noticed(monkeypatch):
    class Ending(AdamPiece):
        def adam(self, gradient, settings):
            super().adam(gradient, settings)
            if len(self.value) == 1:
                self.value.mul_(1.001)

    ends_are_as_the_rest.cache_clear()
    monkeypatch.setattr(adam_arithmetic, "AdamPiece", Ending)
    assert not ends_are_as_the_rest(torch.float32)
    ends_are_as_the_rest.cache_clear()
