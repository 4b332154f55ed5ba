"""The sandbox leaves no trace; the jump equals numpy's norms."""

import numpy as np
import pytest
import torch
from torch import nn

from lit_gelu.curvature import (
    evaluation_sandbox,
    jump_sums,
    relative_jump,
)
from lit_gelu.errors import ArgumentError


class Counting(nn.Module):
    """Counts its calls, whatever the mode, and puts a new tensor in the buffer's place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("in_place", torch.zeros(()))
        self.register_buffer("absent", None)

    def forward(self, x):
        self.calls = self.calls + 1
        self.in_place += 1
        return x


def test_flags_and_buffers_are_restored():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout().eval(), Counting())
    flags = [module.training for module in model.modules()]
    buffers = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    with evaluation_sandbox(model):
        assert not any(module.training for module in model.modules())
        assert not model(torch.randn(4, 3)).requires_grad
    assert [module.training for module in model.modules()] == flags
    for name, buffer in model.named_buffers():
        original, content = buffers[name]
        assert buffer is original
        assert torch.equal(buffer, content)


def test_restored_after_an_error_too():
    model = nn.Sequential(nn.Dropout())
    with pytest.raises(RuntimeError), evaluation_sandbox(model):
        raise RuntimeError
    assert model.training
    assert model[0].training
    assert torch.is_grad_enabled()


def test_jump_over_several_tensors_equals_numpy():
    rng = np.random.default_rng(0)
    old = [rng.normal(size=shape) for shape in ((4, 3), (5,))]
    new = [tensor + rng.normal(size=tensor.shape) for tensor in old]
    sums = jump_sums(map(torch.tensor, old), map(torch.tensor, new))
    flat_old, flat_new = (np.concatenate([t.ravel() for t in tensors]) for tensors in (old, new))
    expected = np.linalg.norm(flat_new - flat_old) / np.linalg.norm(flat_old)
    assert relative_jump(sums).item() == pytest.approx(expected, rel=1e-12)
    assert sums[2].item() == pytest.approx(abs(flat_new - flat_old).max(), rel=1e-12)


def test_jump_needs_outputs_of_the_same_shape():
    with pytest.raises(ArgumentError, match="shape"):
        jump_sums([torch.zeros(2)], [torch.zeros(3)])
    with pytest.raises(ArgumentError, match="no floating-point"):
        jump_sums([], [])
