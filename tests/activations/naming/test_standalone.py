"""Presets whose base has lost its name compute what they say, against torch's own functions."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_gelu.activations import registry as default_registry
from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.naming.entry import ActivationEntry
from lit_gelu.activations.naming.name_table import standalone
from lit_gelu.activations.naming.spec import ActivationSpec
from lit_gelu.activations.registry import ActivationRegistry

X = torch.linspace(-3, 3, 25, dtype=torch.float64)
TANH = ActivationSpec.of("gelu", approximate="tanh")
ORACLES = {
    "gelu_tanh": ("gelu", lambda x: F.gelu(x, approximate="tanh")),
    "gelu_new": ("gelu", lambda x: F.gelu(x, approximate="tanh")),
    "quick_gelu": ("gelu", lambda x: x * torch.sigmoid(1.702 * x)),
    "logistic": ("silu", F.silu),
    "gelu_10": ("clipped_gelu", lambda x: F.gelu(x).clamp(-10, 10)),
    "cauchy_linear": ("cdf_linear", lambda x: x * torch.distributions.Cauchy(0.0, 1.0).cdf(x)),
    "laplace_linear": ("cdf_linear", lambda x: x * torch.distributions.Laplace(0.0, 1.0).cdf(x)),
}


def without_base(name: str) -> ActivationRegistry:
    registry = ActivationRegistry()
    registry.register(ORACLES[name][0], override=True)(nn.Softsign)
    return registry


@pytest.mark.parametrize("name", ORACLES)
def test_a_preset_keeps_its_meaning_when_its_base_is_overridden(name):
    registry, oracle = without_base(name), ORACLES[name][1]
    assert isinstance(registry.create(ORACLES[name][0]), nn.Softsign)
    module = registry.create(name)
    torch.testing.assert_close(module(X), oracle(X))
    spec = registry.spec_of(module)
    assert spec == registry.resolve(name) == ActivationSpec(registry.entry(name).name)
    torch.testing.assert_close(registry.create(str(spec))(X), oracle(X))
    torch.testing.assert_close(registry.stored.create(str(spec))(X), oracle(X))


@pytest.mark.parametrize("name", ORACLES)
def test_function_and_derivative_are_the_presets(name):
    registry, oracle = without_base(name), ORACLES[name][1]
    row = registry.entry(name)
    torch.testing.assert_close(row.function(X), oracle(X))
    torch.testing.assert_close(row.function(X, **row.live_arguments(registry.create(name))), oracle(X))
    if row.derivative is not None:
        torch.testing.assert_close(row.derivative(X), torch.func.grad(lambda x: oracle(x).sum())(X))


def test_the_base_s_other_arguments_are_accepted_and_those_of_the_preset_are_not():
    registry = without_base("gelu_tanh")
    with pytest.raises(ActivationArgumentError):
        registry.create("gelu_tanh(approximate='none')")


def test_modules_of_a_shared_class_are_told_apart_by_their_arguments():
    registry = without_base("cauchy_linear")
    other = ActivationRegistry()
    for name in ("cauchy_linear", "laplace_linear"):
        assert registry.spec_of(other.create(name)) == ActivationSpec(name)
    assert registry.spec_of(other.create("cdf_linear")).opaque
    exact = without_base("gelu_tanh").spec_of(nn.GELU())
    assert exact.opaque


def test_what_is_known_is_of_the_preset():
    info, intact = without_base("gelu_tanh").info("gelu_new"), ActivationRegistry().info("gelu_new")
    assert info.formula == intact.formula
    assert info.minimum == intact.minimum
    assert info.aliases == tuple(alias for alias in intact.aliases if alias != "gelu_tanh")
    assert "gelu_tanh" not in without_base("gelu_tanh").info("gelu").aliases


def test_moments_are_not_those_of_the_base_s_usual_arguments():
    assert without_base("quick_gelu").entry("quick_gelu").moments is None


def test_the_scope_of_an_override_ends():
    registry = ActivationRegistry()
    with registry.scope():
        registry.register("gelu", override=True)(lambda x: x)
        assert str(registry.resolve("gelu_tanh")) == "gelu_tanh"
    assert str(registry.resolve("gelu_tanh")) == "gelu(approximate='tanh')"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda registry: pickle.loads(pickle.dumps(registry))])
def test_copies_have_it_too(copied):
    registry = copied(without_base("gelu_tanh"))
    torch.testing.assert_close(registry.create("gelu_tanh")(X), F.gelu(X, approximate="tanh"))
    intact = copied(ActivationRegistry())
    assert str(intact.resolve("gelu_tanh")) == "gelu(approximate='tanh')"


def test_a_pickle_of_the_default_registry_leaves_its_presets_with_their_bases():
    with default_registry.scope():
        default_registry.register("gelu", override=True)(nn.Softsign)
        text = pickle.dumps(default_registry)
        assert pickle.loads(text) is default_registry
    assert str(default_registry.resolve("gelu_tanh")) == "gelu(approximate='tanh')"


def test_a_preset_that_is_added_belongs_to_the_row_that_is_there():
    registry = ActivationRegistry()
    registry.register("scaled")(_scaled)
    registry.add(ActivationEntry("doubled", nn.Identity, preset=ActivationSpec.of("scaled", by=2.0)))
    registry.register("scaled", override=True)(nn.Softsign)
    assert registry.entry("doubled").function(X).equal(2.0 * X)


def test_a_preset_of_one_s_own_keeps_its_spec_in_another_process():
    with default_registry.scope():
        default_registry.add(ActivationEntry("my_tanh", _gelu_tanh, preset=TANH))
        text = pickle.dumps(default_registry)
    with default_registry.scope():
        pickle.loads(text)
        assert default_registry.resolve("my_tanh") == TANH
        assert default_registry.spec_of(nn.GELU(approximate="tanh")) == TANH


def test_pickled_rows_are_presets_of_the_rows_of_a_registry():
    registry, row = ActivationRegistry(), ActivationRegistry().entry("gelu_tanh")
    registry.add(pickle.loads(pickle.dumps(row)), override=True)
    assert registry.resolve("gelu_new") == registry.resolve("gelu_tanh") == TANH


def test_a_row_of_its_own_is_no_preset():
    with pytest.raises(ValueError, match="preset"):
        standalone(ActivationRegistry().entry("relu"))


def _gelu_tanh():
    return nn.GELU(approximate="tanh")


def _scaled(x, by=1.0):
    return by * x
