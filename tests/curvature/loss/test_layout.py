"""Flat vectors, moving parameters along them, and random vectors that depend on counters alone."""

import pytest
import torch
from loss_nets import everything, named
from torch import nn

from lit_gelu.curvature.loss import (
    ParameterLayout,
    displaced,
    module_layout,
    normal,
    rademacher,
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
        with displaced(layout) as displacement:
            displacement.move(offset)
            moved.extend(p.clone() for p in layer.parameters())
            displacement.move(-offset)
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
    with pytest.raises(ArgumentError, match="sharded"):
        ParameterLayout({"weight": weight})


class TestRandomVectors:
    def test_depend_on_seed_event_and_number_alone(self):
        make = lambda *counters: rademacher(64, *counters, dtype=torch.float32, device="cpu")  # noqa: E731
        state = torch.get_rng_state()
        vectors = {counters: make(*counters) for counters in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]}
        assert torch.equal(torch.get_rng_state(), state)
        torch.manual_seed(123)
        for counters, vector in vectors.items():
            assert torch.equal(make(*counters), vector)
        assert len({tuple(vector.tolist()) for vector in vectors.values()}) == 4

    def test_no_counter_stands_for_another(self):
        # (1, 0) and (0, 1) would be one vector if the counters were added up.
        seen = {
            tuple(rademacher(48, s, e, k, dtype=torch.float32, device="cpu").tolist())
            for s in range(6)
            for e in range(6)
            for k in range(6)
        }
        assert len(seen) == 216

    def test_signs_are_even_and_independent(self):
        rows = torch.stack([rademacher(1000, 0, 0, k, dtype=torch.float64, device="cpu") for k in range(400)])
        assert rows.abs().eq(1).all()
        assert abs(rows.mean()) < 4 / 400_000**0.5
        gram = rows @ rows.T / 1000
        gram.fill_diagonal_(0)
        assert gram.abs().max() < 6 / 1000**0.5
        assert gram.square().sum() / (400 * 399) == pytest.approx(1 / 1000, rel=0.05)

    def test_normal_has_mean_zero_and_deviation_one(self):
        vector = normal(100_000, 3, 1, 4, dtype=torch.float64, device="cpu")
        assert abs(vector.mean()) < 4 / 100_000**0.5
        assert vector.std() == pytest.approx(1, abs=0.01)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_take_no_more_memory_than_the_vector(self, dtype):  # D9: int64 on the CPU, then copied
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            vector = rademacher(100_000, 0, 0, 0, dtype=dtype, device="cpu")
        taken = sum(max(event.self_cpu_memory_usage, 0) for event in profile.events())
        assert vector.dtype == dtype
        assert 100_000 * dtype.itemsize <= taken < 100_000 * (dtype.itemsize + 3.2)
