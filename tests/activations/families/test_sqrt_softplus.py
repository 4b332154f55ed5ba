"""The root of softplus."""

import torch
from activation_contract import ActivationContract
from activation_oracles import cases_of

from lit_gelu.activations.functional import sqrt_softplus


class TestSqrtSoftplus(ActivationContract):
    cases = cases_of("sqrt_softplus")


def test_the_gradient_is_finite_where_softplus_underflows():
    """The root of torch's softplus has a NaN gradient there."""
    x = torch.tensor([-120.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(sqrt_softplus(x).sum(), x)
    torch.testing.assert_close(gradient, torch.exp(x.detach() / 2) / 2)
    (torchs,) = torch.autograd.grad(torch.nn.functional.softplus(x).sqrt().sum(), x)
    assert torchs.isnan().all()
