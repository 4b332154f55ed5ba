"""What is reported as swapped runs: forward on the instance, hooks, bound methods; and what is refused or skipped."""

import functools
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_gelu import surgery
from lit_gelu.errors import SwapError

SAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return F.relu(self.linear(x))


class ForwardAssigned(Net):
    def __init__(self):
        super().__init__()
        self.forward = self.other

    def other(self, x):
        return F.relu(self.linear(x))


class HookBound(Net):
    def __init__(self):
        super().__init__()
        self.linear.register_forward_hook(self.hook)

    def hook(self, module, args, output):
        return F.relu(output)

    def forward(self, x):
        return self.linear(x)


def with_partial():
    model = Net()
    model.forward = functools.partial(Net.forward, model)
    return model


def with_method():
    model = Net()
    model.forward = types.MethodType(Net.forward, model)
    return model


def as_accelerate():
    """What accelerate's add_hook_to_module does."""
    model = Net()
    old = model.forward

    def new_forward(module, *args, **kwargs):
        return module._old_forward(*args, **kwargs)

    model._old_forward = old
    model.forward = functools.update_wrapper(functools.partial(new_forward, model), old)
    return model


def with_hook():
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_forward_hook(lambda module, args, output: F.relu(output))
    return model


class HeldForward(nn.Module):
    """It calls a bound method of its activation, which no longer belongs to it after a swap."""

    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()
        self.call = self.act.__call__

    def forward(self, x):
        return self.call(x)


@pytest.mark.parametrize("build", [with_method, ForwardAssigned])
def test_a_bound_method_follows_the_class(build):
    model = build()
    before, kept = model(SAMPLE), vars(model)["forward"]
    report = surgery.swap(model, {"*": "silu"}, SAMPLE)
    assert torch.equal(model(SAMPLE), F.silu(model.linear(SAMPLE)))
    assert surgery.coverage(model, SAMPLE).counts() == {"silu": 1}
    report.undo()
    assert vars(model)["forward"] is kept
    assert torch.equal(model(SAMPLE), before)


@pytest.mark.parametrize("build", [with_partial, as_accelerate, HookBound, with_hook, HeldForward])
@pytest.mark.parametrize("training", [False, True])
def test_what_would_change_nothing_is_refused_and_nothing_is_changed(build, training):
    model = build().train(training)
    before, classes, state = model(SAMPLE), [type(m) for m in model.modules()], [list(vars(m)) for m in model.modules()]
    with pytest.raises(SwapError):
        surgery.swap(model, {"*": "silu"}, SAMPLE)
    assert torch.equal(model(SAMPLE), before)
    assert [type(m) for m in model.modules()] == classes
    assert [list(vars(m)) for m in model.modules()] == state
    assert model.training == training


def test_an_activation_that_does_not_take_what_comes_is_refused_before_anything_is_changed():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    with pytest.raises(SwapError):
        surgery.swap(model, {"1": nn.PReLU(5)}, SAMPLE)
    assert isinstance(model[1], nn.ReLU)


def test_calls_in_a_traced_graph_are_refused():
    model = torch.fx.symbolic_trace(Net())
    assert [str(site.spec) for site in surgery.find_sites(model, SAMPLE)] == ["relu"]
    before = model(SAMPLE)
    with pytest.raises(SwapError):
        surgery.swap(model, {"*": "silu"}, SAMPLE)
    assert torch.equal(model(SAMPLE), before)
