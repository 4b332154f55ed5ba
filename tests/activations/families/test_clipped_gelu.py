"""GELU with bounds."""

import pytest
import torch
from activation_contract import ActivationContract
from activation_oracles import cases_of

from lit_gelu import activations
from lit_gelu.activations import functional
from lit_gelu.activations.errors import ActivationArgumentError


class TestClippedGelu(ActivationContract):
    cases = cases_of("clipped_gelu")


def test_the_kinks_are_where_gelu_meets_the_bounds():
    kinks = activations.info("clipped_gelu(min=-0.125, max=6.0)").kinks
    x = torch.tensor([x for x, _ in kinks], dtype=torch.float64)
    torch.testing.assert_close(functional.gelu(x), torch.tensor([-0.125, -0.125, 6.0]).double(), rtol=0, atol=1e-15)
    inside = functional.gelu_derivative(x)
    torch.testing.assert_close(
        torch.tensor([jump for _, jump in kinks]).double(), inside * torch.tensor([-1.0, 1.0, -1.0]), rtol=1e-6, atol=0
    )


def test_without_effect_it_is_gelu():
    info = activations.info("clipped_gelu(min=-10.0, max=inf)")
    assert info.kinks == ()
    assert info.minimum == activations.info("gelu").minimum


@pytest.mark.parametrize(("lower", "upper"), [(1.0, 1.0), (2.0, -2.0)])
def test_bounds_in_the_wrong_order_are_refused(lower, upper):
    with pytest.raises(ActivationArgumentError):
        activations.create("clipped_gelu", min=lower, max=upper)
    with pytest.raises(ActivationArgumentError):
        functional.clipped_gelu(torch.zeros(1), lower, upper)
