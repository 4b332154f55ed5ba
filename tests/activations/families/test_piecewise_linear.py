"""Identity, ReLU, ReLU6, leaky ReLU and PReLU."""

import pytest
import torch
from activation_contract import ActivationContract
from activation_oracles import cases_of
from torch.nn import functional as F

from lit_gelu.activations import functional
from lit_gelu.activations.errors import ActivationArgumentError


class TestPiecewiseLinear(ActivationContract):
    cases = cases_of("identity", "relu", "relu6", "leaky_relu", "prelu")


@pytest.mark.parametrize(
    ("name", "torchs", "parameters"),
    [
        ("relu", F.relu, {}),
        ("relu6", F.relu6, {}),
        ("leaky_relu", F.leaky_relu, {"negative_slope": 0.2}),
        ("prelu", F.prelu, {"weight": torch.tensor([0.3], dtype=torch.float64)}),
    ],
)
def test_the_value_at_a_kink_is_torchs(name, torchs, parameters):
    x = torch.tensor([-1.0, -0.0, 0.0, 1.0, 6.0, 7.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(torchs(x, **parameters).sum(), x)
    assert torch.equal(getattr(functional, f"{name}_derivative")(x, **parameters), gradient)
    assert torch.equal(getattr(functional, name)(x, **parameters), torchs(x, **parameters))


def test_prelu_by_channel_equals_torchs_with_its_gradients():
    x = torch.randn(4, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weight = torch.tensor([0.1, 0.0, -0.5], dtype=torch.float64, requires_grad=True)
    ours, torchs = functional.prelu(x, weight), F.prelu(x, weight)
    assert torch.equal(ours, torchs)
    for mine, theirs in zip(*(torch.autograd.grad((y**2).sum(), (x, weight)) for y in (ours, torchs)), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_prelu_refuses_a_weight_that_does_not_fit():
    for function in (functional.prelu, functional.prelu_derivative):
        with pytest.raises(ActivationArgumentError):
            function(torch.zeros(5), weight=torch.zeros(2))


def test_half_precision_parameters_are_not_rounded():
    x = torch.tensor([-3.0], dtype=torch.bfloat16)
    assert functional.prelu(x, torch.tensor([0.3])).item() == torch.tensor(-0.9).bfloat16().item()
