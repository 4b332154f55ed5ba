"""x times a distribution function; the paper's Cauchy and Laplace cases, and distributions given as objects."""

import math

import pytest
import scipy.stats
import torch

from lit_gelu import activations
from lit_gelu.activations import ActivationArgumentError, ActivationSpecError, OpaqueActivationError, functional
from lit_gelu.activations.functional import cdf_linear, derivative
from lit_gelu.activations.modules import CDFLinear

DISTRIBUTIONS = torch.distributions
POINTS = [-30.0, -3.0, -2.0, -1.0, -0.3, 0.0, 0.4, 1.0, 2.0, 5.0, 40.0]


@pytest.mark.parametrize(
    ("spec", "smoothness", "facts"),
    [
        ("cauchy_linear", math.inf, {"monotone": True, "convex": True, "minimum": None, "inflections": ()}),
        ("laplace_linear", 2, {"monotone": False, "convex": False}),
    ],
)
def test_facts(spec, smoothness, facts):
    info = activations.info(spec)
    assert info.smoothness == smoothness
    assert {name: getattr(info, name) for name in facts} == facts
    assert info.lipschitz == pytest.approx(1.0 if spec == "cauchy_linear" else 1 + math.exp(-2) / 2, rel=1e-12)


def test_constants_of_the_two_cases():
    assert activations.info("cauchy_linear").range == (pytest.approx(-1 / math.pi, abs=1e-15), math.inf)
    laplace = activations.info("laplace_linear")
    assert laplace.minimum == (pytest.approx(-1.0, abs=1e-12), pytest.approx(-1 / (2 * math.e), abs=1e-15))
    assert laplace.inflections == (pytest.approx(-2.0), pytest.approx(2.0))


class AccurateCauchy:
    """A distribution whose own formula has the left tail."""

    def cdf(self, x):
        return torch.atan2(torch.ones_like(x), -x) / math.pi


def test_minus_infinity_has_the_limit_of_the_tail():
    x = torch.tensor([-math.inf, -1e30], dtype=torch.float64)
    torch.testing.assert_close(cdf_linear(x, AccurateCauchy()), cdf_linear(x, "cauchy"), rtol=1e-12, atol=0)
    torch.testing.assert_close(cdf_linear(x, DISTRIBUTIONS.Normal(0.0, 1.0)), torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("name", "dtype", "end"),
    [
        ("laplace", torch.float32, 1500.0),
        ("laplace", torch.float64, 1500.0),
        ("cauchy", torch.float32, 1e18),
        ("cauchy", torch.float64, 1e150),
    ],
)
def test_autograd_where_the_function_becomes_x(name, dtype, end):
    x = torch.tensor([end / 2, end, 2 * end], dtype=dtype)
    for slope in (
        torch.func.grad(lambda x: cdf_linear(x, name).sum())(x),
        torch.func.jvp(lambda x: cdf_linear(x, name), (x,), (torch.ones_like(x),))[1],
    ):
        torch.testing.assert_close(slope, torch.ones_like(x))


class Logistic:
    def cdf(self, x):
        return torch.sigmoid(x)


def test_any_object_with_a_distribution_function():
    x = torch.linspace(-5, 5, 21, dtype=torch.float64)
    module = CDFLinear(Logistic())
    for order in (0, 1, 2):
        torch.testing.assert_close(derivative(module, x, order), derivative("silu", x, order))


class Learned(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def cdf(self, x):
        return torch.sigmoid(self.scale * x)


def test_a_distribution_that_is_learned():
    module = CDFLinear(Learned())
    assert [name for name, _ in module.named_parameters()] == ["distribution.scale"]
    module(torch.tensor([1.0])).sum().backward()
    assert module.distribution.scale.grad.item() == pytest.approx(0.19661193)  # s(1) s(-1)


def test_an_object_makes_an_opaque_spec():
    distribution = DISTRIBUTIONS.Normal(0.0, 2.0)
    module = activations.create("cdf_linear", distribution=distribution)
    x = torch.linspace(-3, 3, 7)
    torch.testing.assert_close(module(x), functional.gaussian_gelu(x, sigma=2.0), rtol=1e-5, atol=1e-6)
    spec = activations.spec_of(module)
    assert spec.opaque
    assert spec == activations.resolve("cdf_linear", distribution=distribution) == activations.resolve(module)
    with pytest.raises(OpaqueActivationError):
        spec.for_checkpoint()
    registry = activations.ActivationRegistry()
    registry.register("wide")(lambda x: cdf_linear(x, distribution))
    assert registry.spec_of(registry.create("wide")).for_checkpoint() == "wide"
    with pytest.raises(ActivationSpecError):
        activations.create({"name": "cdf_linear", "distribution": distribution})


def test_refuses_what_is_no_distribution():
    for distribution in ("poisson", DISTRIBUTIONS.Normal, 3.0):
        for call in (CDFLinear, lambda d: cdf_linear(torch.zeros(1), d)):
            with pytest.raises(ActivationArgumentError):
                call(distribution)
    for distribution in (scipy.stats.norm(), DISTRIBUTIONS.Normal(torch.zeros(2), 1.0)):  # arrays; a batch
        with pytest.raises(ActivationArgumentError):
            cdf_linear(torch.zeros(3, 1), distribution)
    for distribution, memory in (("cauchy", "less"), (DISTRIBUTIONS.Normal(0.0, 1.0), "recompute")):
        with pytest.raises(ActivationArgumentError):
            CDFLinear(distribution, memory=memory)
