"""Sigmoid, tanh and hard sigmoid."""

import torch
from activation_contract import ActivationContract
from activation_oracles import cases_of
from torch.nn import functional as F

from lit_gelu.activations.functional import hard_sigmoid, hard_sigmoid_derivative


class TestSigmoid(ActivationContract):
    cases = cases_of("sigmoid", "tanh", "hard_sigmoid")


def test_the_value_at_a_kink_is_torchs():
    x = torch.tensor([-3.0, 3.0, 0.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(F.hardsigmoid(x).sum(), x)
    torch.testing.assert_close(hard_sigmoid_derivative(x).detach(), gradient)
    torch.testing.assert_close(hard_sigmoid(x), F.hardsigmoid(x))
