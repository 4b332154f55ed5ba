"""A workspace against `torch.optim.Adam` of the same parameters."""

import pytest
import torch

from lit_gelu.replicas.written import workspace as module
from lit_gelu.replicas.written.workspace import Workspace

SHAPES = {"weight": (13, 7), "bias": (13,), "large": (70, 2001)}


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("ends_differ", [False, True])
def test_parameters_are_trained_on_it_and_put_back(monkeypatch, fused, ends_differ):
    monkeypatch.setattr(module, "ends_are_as_the_rest", lambda _: not ends_differ)
    generator = torch.Generator().manual_seed(0)
    members = [
        [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES.values()] for _ in range(2)
    ]
    alone = [[torch.nn.Parameter(parameter.detach().clone()) for parameter in member] for member in members]
    optimizers = [torch.optim.Adam(member, lr=lr, fused=fused) for member, lr in zip(alone, (0.1, 0.01), strict=True)]
    states = [[{key: torch.zeros_like(p) for key in ("exp_avg", "exp_avg_sq")} for p in m] for m in members]
    workspace = Workspace(dict(zip(SHAPES, members[0], strict=True)))
    assert {name: value.data_ptr() % 64 for name, value in workspace.values.items()} == dict.fromkeys(SHAPES, 0)
    for step in (1, 2, 3):
        for member, own, optimizer, state in zip(members, alone, optimizers, states, strict=True):
            with torch.no_grad():
                workspace.take(member, state)
                for parameter, gradient in zip(own, workspace.gradients.values(), strict=True):
                    parameter.grad = torch.randn(parameter.shape, generator=generator)
                    gradient.copy_(parameter.grad)
                workspace.adam(optimizer.param_groups[0], step)
                workspace.put_back(member, state)
            optimizer.step()
    for member, own, optimizer, state in zip(members, alone, optimizers, states, strict=True):
        for ours, theirs, moments in zip(member, own, state, strict=True):
            assert torch.equal(ours, theirs)
            assert torch.equal(moments["exp_avg"], optimizer.state[theirs]["exp_avg"])
            assert torch.equal(moments["exp_avg_sq"], optimizer.state[theirs]["exp_avg_sq"])
