"""The attention function of Mega."""

import math

import torch
from activation_contract import ActivationContract
from activation_oracles import cases_of

from lit_gelu.activations.functional import mega_laplace, mega_laplace_derivative


class TestMegaLaplace(ActivationContract):
    cases = cases_of("mega_laplace")


def test_it_touches_the_square_at_the_root_of_one_half():
    """Ma et al. 2022: mu and sigma are such that value and slope are those of x^2 at sqrt(1/2)."""
    x = torch.tensor([math.sqrt(0.5)], dtype=torch.float64)
    assert abs(mega_laplace(x).item() - 0.5) < 1e-6
    assert abs(mega_laplace_derivative(x).item() - math.sqrt(2)) < 1e-5
