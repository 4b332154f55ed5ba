"""Softplus and log-sigmoid."""

import math

import numpy as np
import pytest
import torch
from activation_contract import ActivationContract
from activation_oracles import cases_of
from torch.nn import functional as F

from lit_gelu import activations
from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.functional import softplus, softplus_derivative


class TestSoftplus(ActivationContract):
    cases = cases_of("softplus", "log_sigmoid")


@pytest.mark.parametrize("beta", [0.5, 1.0, 3.0])
def test_torchs_linear_part_is_too_small_by_what_the_docstring_says(beta):
    x = torch.linspace(-10, 60 / beta, 2001, dtype=torch.float64)
    apart = softplus(x, beta) - F.softplus(x, beta)
    assert apart[beta * x <= 20].abs().max().item() < 1e-14
    linear = apart[beta * x > 20]
    assert linear.min().item() >= 0
    assert linear.max().item() <= 2.07e-9 / beta


def test_refuses_a_beta_that_is_not_positive():
    for function in (softplus, softplus_derivative):
        with pytest.raises(ActivationArgumentError):
            function(torch.zeros(1), beta=-1.0)


@pytest.mark.parametrize("threshold", [0.0, 1.0, 5.0])
def test_a_threshold_that_shows_is_in_every_figure(threshold):
    """torch goes over to x above it, with a jump; the formula without it would be of another function."""
    x = torch.tensor([-2.0, 0.5, 2.0, 6.0], dtype=torch.float64)
    spec = f"softplus(threshold={threshold})"
    expected = torch.nn.functional.softplus(x, threshold=threshold)
    assert torch.equal(activations.functional.derivative(spec, x, 0), expected)
    first = torch.where(x > threshold, 1.0, torch.sigmoid(x))
    assert torch.allclose(activations.functional.derivative(spec, x, 1), first, rtol=1e-12)
    jump = math.log1p(math.exp(-threshold))
    assert activations.compare("softplus", spec).value.largest == pytest.approx(jump, rel=1e-3)
    nodes = np.linspace(-12, 12, 2_000_001)
    squares = np.where(nodes > threshold, nodes, np.log1p(np.exp(nodes))) ** 2
    second = np.trapezoid(squares * np.exp(-(nodes**2) / 2), nodes) / math.sqrt(2 * math.pi)
    assert activations.gain(spec) == pytest.approx(second**-0.5, rel=1e-3)
