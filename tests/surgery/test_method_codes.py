"""A call belongs to the module whose method makes it, and not to a module that a helper was given."""

import functools
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from lit_gelu import surgery

SAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def hidden(layer, x):
    return F.gelu(layer(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)

    @staticmethod
    def hidden(layer, x):
        return F.gelu(layer(x))


class ByHelper(Net):
    def forward(self, x):
        return hidden(x=x, layer=self.first)


class ByStaticMethod(Net):
    def forward(self, x):
        return self.hidden(self.first, x)


class ByLambda(Net):
    def forward(self, x):
        return (lambda layer, y: F.gelu(layer(y)))(self.first, x)


@pytest.mark.parametrize("cls", [ByHelper, ByStaticMethod, ByLambda])
def test_a_helper_s_call_is_its_caller_s(cls):
    model = nn.Sequential(nn.Identity(), cls())
    (site,) = surgery.find_sites(model, SAMPLE)
    assert site.name == "1:gelu"
    assert site.calls[0].owner is model[1]


def wrapped(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def unnamed(function):
    def wrapper(self, *args, **kwargs):
        return function(self, *args, **kwargs)

    return wrapper


class Layer(nn.Linear):
    """Calls an activation in every kind of method."""

    def __init__(self):
        super().__init__(4, 4)

    @wrapped
    @torch.no_grad()
    def decorated(self, x):
        return F.silu(x)

    @unnamed
    def decorated_without_a_trace(self, x):
        return F.mish(x)

    def doubled(self, x, factor):
        return factor * F.elu(x)

    partial = functools.partialmethod(doubled, factor=2)

    @property
    def scale(self):
        return F.softplus(self.bias)

    def inner(self, x):
        return F.selu(x)

    def forward(self, x):
        x = self.decorated(F.gelu(x)) + self.partial(x)
        return self.scale * self.decorated_without_a_trace(x) + checkpoint(self.inner, x, use_reentrant=False)


def test_calls_of_all_kinds_of_methods_are_their_module_s():
    model = nn.ModuleDict({"layer": Layer(), "out": nn.Linear(4, 4)})
    model.forward = types.MethodType(lambda self, x: self["out"](self["layer"](x)), model)
    names = {site.name for site in surgery.find_sites(model, SAMPLE)}
    assert names == {f"layer:{name}" for name in ("gelu", "silu", "mish", "elu", "softplus", "selu")}


def tanh_after(self, x):
    return torch.tanh(F.linear(x, self.weight, self.bias))


@pytest.mark.parametrize("how", ["bound", "partial", "class", "hook"])
def test_a_method_or_hook_that_was_put_on_is_the_module_s(how):
    class Plain(nn.Linear):
        pass

    layer = Plain(4, 4)
    model = nn.Sequential(layer, nn.ReLU())
    assert [site.name for site in surgery.find_sites(model, SAMPLE)] == ["1"]  # and nothing is remembered of it
    if how == "class":
        Plain.forward = tanh_after
    elif how == "hook":
        layer.register_forward_hook(lambda module, args, output: torch.tanh(output))
    else:
        layer.forward = {"bound": types.MethodType, "partial": functools.partial}[how](tanh_after, layer)
    assert [site.name for site in surgery.find_sites(model, SAMPLE)] == ["0:tanh", "1"]
    torch.testing.assert_close(model(SAMPLE), F.relu(torch.tanh(F.linear(SAMPLE, layer.weight, layer.bias))))
