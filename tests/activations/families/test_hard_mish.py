"""Hard Mish."""

import torch
from activation_contract import ActivationContract
from activation_oracles import cases_of

from lit_gelu.activations.functional import hard_mish, hard_mish_derivative


class TestHardMish(ActivationContract):
    cases = cases_of("hard_mish")


def test_minimum_and_the_jump_at_minus_two():
    x = torch.tensor([-1.0, -1.999999999, -2.0], dtype=torch.float64)
    assert hard_mish(x)[0].item() == -0.5
    torch.testing.assert_close(hard_mish_derivative(x), torch.tensor([0.0, -1.0, 0.0]).double(), rtol=0, atol=1e-8)
