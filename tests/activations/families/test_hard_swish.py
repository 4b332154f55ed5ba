"""Hard Swish."""

import torch
from activation_contract import ActivationContract
from activation_oracles import cases_of
from torch.nn import functional as F

from lit_gelu.activations.functional import hard_swish, hard_swish_derivative


class TestHardSwish(ActivationContract):
    cases = cases_of("hard_swish")


def test_minimum_and_slopes():
    """the minimum is -0.375 at -1.5; f' reaches -1/2 and 3/2 at the kinks, from inside."""
    x = torch.tensor([-1.5, -2.999999999, 2.999999999], dtype=torch.float64)
    assert hard_swish(x)[0].item() == -0.375
    torch.testing.assert_close(hard_swish_derivative(x), torch.tensor([0.0, -0.5, 1.5]).double(), rtol=0, atol=1e-9)


def test_the_value_at_a_kink_is_torchs():
    x = torch.tensor([-3.0, 3.0, 0.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(F.hardswish(x).sum(), x)
    assert torch.equal(hard_swish_derivative(x), gradient)
    torch.testing.assert_close(hard_swish(x), F.hardswish(x))
