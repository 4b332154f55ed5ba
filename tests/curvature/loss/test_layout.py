"""Flat vectors, moving parameters along them, and random vectors that depend on counters alone."""

import pytest
import torch
from loss_nets import everything, named
from torch import nn

from lit_gelu.curvature.loss import (
    ParameterLayout,
    displaced,
    module_layout,
)
from lit_gelu.errors import ArgumentError


def test_split_undoes_flatten_and_slices_say_where():
    model, _, _ = everything()
    layout = ParameterLayout(named(model))
    values = layout.values()
    for (name, parameter), piece in zip(layout.tensors.items(), layout.split(values), strict=True):
        assert torch.equal(piece, parameter)
        assert torch.equal(values[layout.slices[name]], parameter.detach().flatten())
    assert torch.equal(layout.flatten(layout.split(values)), values)
    assert layout.size == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_what_is_missing_is_zero():
    layout = ParameterLayout({"a": torch.ones(2, requires_grad=True), "b": torch.ones(1, requires_grad=True)})
    assert layout.flatten([None, torch.tensor([3.0])]).tolist() == [0, 0, 3]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_displaced_parameters_come_back_bit_by_bit(dtype):
    layer = nn.Linear(30, 20).to(dtype)
    layout, before = ParameterLayout(named(layer)), [p.clone() for p in layer.parameters()]
    versions = [p._version for p in layer.parameters()]
    offset = torch.full((layout.size,), 0.25, dtype=layout.dtype)
    moved = []

    def move_and_fail():
        with displaced(layout) as move:
            move(offset)
            moved.extend(p.clone() for p in layer.parameters())
            move(-offset)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        move_and_fail()
    for p, original, there in zip(layer.parameters(), before, moved, strict=True):
        assert torch.equal(p, original)
        assert torch.equal(there, (original.to(layout.dtype) + 0.25).to(dtype))
    assert [p._version for p in layer.parameters()] == versions


def test_module_layout_joins_what_belongs_together():
    model, _, _ = everything()
    layout = ParameterLayout(named(model))
    modules = module_layout(layout.slices)
    assert set(modules) == {"embedding", "norm", "attention", "attention.out_proj", "hidden", "unused"}
    assert sum(part.stop - part.start for parts in modules.values() for part in parts) == layout.size


def test_sharded_parameters_are_refused():
    weight = torch.ones(2, requires_grad=True)
    weight.device_mesh = object()
    with pytest.raises(ArgumentError):
        ParameterLayout({"weight": weight})
