"""A swap changes the activation and nothing else, and what is reported as swapped runs; all else is refused."""

import functools
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_gelu import surgery
from lit_gelu.errors import SwapError

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


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
    before, kept = model(X), vars(model)["forward"]
    report = surgery.swap(model, {"*": "silu"}, X)
    assert torch.equal(model(X), F.silu(model.linear(X)))
    assert surgery.coverage(model, X).counts() == {"silu": 1}
    report.undo()
    assert vars(model)["forward"] is kept
    assert torch.equal(model(X), before)


@pytest.mark.parametrize("build", [as_accelerate, HookBound, with_hook, HeldForward])
@pytest.mark.parametrize("training", [False, True])
def test_what_would_change_nothing_is_refused_and_nothing_is_changed(build, training):
    model = build().train(training)
    before, classes, state = model(X), [type(m) for m in model.modules()], [list(vars(m)) for m in model.modules()]
    with pytest.raises(SwapError):
        surgery.swap(model, {"*": "silu"}, X)
    assert torch.equal(model(X), before)
    assert [type(m) for m in model.modules()] == classes
    assert [list(vars(m)) for m in model.modules()] == state
    assert model.training == training


def test_an_activation_that_does_not_take_what_comes_is_refused_before_anything_is_changed():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    with pytest.raises(SwapError):
        surgery.swap(model, {"1": nn.PReLU(5)}, X)
    assert isinstance(model[1], nn.ReLU)


def test_calls_in_a_traced_graph_are_refused():
    model = torch.fx.symbolic_trace(Net())
    assert [str(site.spec) for site in surgery.find_sites(model, X)] == ["relu"]
    before = model(X)
    with pytest.raises(SwapError):
        surgery.swap(model, {"*": "silu"}, X)
    assert torch.equal(model(X), before)


# --- Containers, buffers, inputs that are used again ---


class Residual(nn.Sequential):
    def forward(self, x):
        return F.relu(x + super().forward(x))


class Held(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 4))
        self.act = F.relu

    def forward(self, x):
        return self.act(super().forward(x))


class Enumerated(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        for layer in self.children():
            x = F.relu(layer(x))
        return x


@pytest.mark.parametrize(
    ("build", "sample"),
    [
        (lambda: Residual(nn.Linear(4, 4), nn.Linear(4, 4)), X),
        (Enumerated, X),
        (Held, X),
        (Held, None),  # of the others nothing is a site without a sample
    ],
)
def test_a_new_child_becomes_no_layer(build, sample):
    model = build()
    before, children = model(X), list(model.children())
    with pytest.raises(SwapError):
        surgery.swap(model, {"*": "silu"}, sample)
    assert torch.equal(model(X), before)
    assert list(model.children()) == children


class WritesTo(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        torch.tanh(x, out=y)
        return y + torch.sigmoid(F.relu(x))


def test_a_call_that_writes_to_a_buffer_is_no_site():
    model = WritesTo()
    assert [site.spec.name for site in surgery.find_sites(model, X)] == ["relu", "sigmoid"]
    surgery.swap(model, {"*": "gelu"}, X)
    assert torch.equal(model(X), torch.tanh(X) + torch.sigmoid(F.gelu(X)))


class Alias(nn.Module):
    def __init__(self):
        super().__init__()
        self.l, self.a = nn.Linear(4, 4), nn.ReLU(inplace=True)

    def forward(self, x):
        h = self.l(x)
        y = self.a(h) + h
        return y + self.a(y - 1)


class InTraining(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)

    def forward(self, x):
        h = self.l(x)
        return F.relu(h, inplace=True) + h if self.training else F.relu(h)


@pytest.mark.parametrize(
    ("build", "target"), [(Alias, "a"), (Alias, "a#0"), (InTraining, "*")], ids=["module", "one call", "in training"]
)
def test_an_input_that_is_used_again(build, target):
    with pytest.raises(SwapError):
        surgery.swap(build(), {target: "leaky_relu(negative_slope=0.0)"}, X)


def test_the_other_call_of_a_module_may_be_swapped():
    model = Alias()
    before = model(X)
    surgery.swap(model, {"a#1": "leaky_relu(negative_slope=0.0)"}, X)
    assert torch.equal(model(X), before)
