"""The attention function of Mega."""

import math

import pytest
import torch
from activation_contract import ActivationContract
from activation_oracles import cases_of

from lit_gelu.activations.functional import mega_laplace, mega_laplace_derivative


class TestMegaLaplace(ActivationContract):
    cases = cases_of("mega_laplace")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sigma", [4e-19, 1e-30, 1e-45])
def test_a_deviation_near_0_is_a_step(sigma, dtype):
    x = torch.tensor([-math.inf, -1.0, 0.0, 1.0, math.inf], dtype=dtype)
    assert mega_laplace(x, mu=0.0, sigma=sigma).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert mega_laplace_derivative(x, 2, mu=0.0, sigma=sigma).tolist() == [0.0] * 5
    assert mega_laplace_derivative(x, 1, mu=0.5, sigma=sigma).tolist() == [0.0] * 5


def test_it_touches_the_square_at_the_root_of_one_half():
    """Ma et al. 2022: mu and sigma are such that value and slope are those of x^2 at sqrt(1/2)."""
    x = torch.tensor([math.sqrt(0.5)], dtype=torch.float64)
    assert abs(mega_laplace(x).item() - 0.5) < 1e-6
    assert abs(mega_laplace_derivative(x).item() - math.sqrt(2)) < 1e-5
