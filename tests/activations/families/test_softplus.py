"""Softplus and log-sigmoid."""

import pytest
import torch
from activation_contract import ActivationContract
from activation_oracles import cases_of
from torch.nn import functional as F

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
        with pytest.raises(ActivationArgumentError, match=r"beta=-1\.0 is not accepted"):
            function(torch.zeros(1), beta=-1.0)
