"""What is not finite counts nowhere, whatever the activation is at 0."""

import math

import pytest
import torch
from torch import nn

from lit_gelu import activations
from lit_gelu.curvature import activation_statistics

X = torch.tensor([math.nan, 0.5, 2.0, math.inf, -4.0, -math.inf], dtype=torch.float64)
FINITE = X[X.isfinite()]


@pytest.mark.parametrize("name", ["gelu", "relu", "softplus", "prelu", "swish(beta=2.0, learnable=True)", "hard_swish"])
def test_figures_are_those_of_the_finite_elements(name):
    module = activations.create(name).double()
    found, expected = activation_statistics(module, X), activation_statistics(module, FINITE)
    assert found.pop("share_non_finite") == 0.5
    expected.pop("share_non_finite")
    assert found == pytest.approx(expected, rel=1e-12, nan_ok=True)


def test_an_activation_that_is_infinite_at_zero():
    registry = activations.ActivationRegistry()
    registry.register("reciprocal")(torch.reciprocal)
    figures = activation_statistics("reciprocal", X, registry)
    assert figures["mean_output"] == pytest.approx((1 / FINITE).mean().item(), rel=1e-12)
    assert figures["mean_squared_derivative"] == pytest.approx((FINITE**-4.0).mean().item(), rel=1e-12)
    assert figures["mean_abs_second_derivative"] == pytest.approx((2 / FINITE.abs() ** 3).mean().item(), rel=1e-12)


def test_what_nobody_registered_is_masked():
    class Shifted(nn.Module):
        def forward(self, x):
            return (x - 1).square()

    figures = activation_statistics(Shifted(), X)
    assert figures["mean_output"] == pytest.approx((FINITE - 1).square().mean().item(), rel=1e-12)
    assert figures["mean_abs_second_derivative"] == pytest.approx(2.0, rel=1e-12)
