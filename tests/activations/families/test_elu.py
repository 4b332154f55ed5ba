"""ELU, SELU and CELU."""

import pytest
import torch
from activation_contract import ActivationContract
from activation_oracles import cases_of
from torch.nn import functional as F

from lit_gelu.activations import functional
from lit_gelu.activations.errors import ActivationArgumentError


class TestElu(ActivationContract):
    cases = cases_of("elu", "selu", "celu")


@pytest.mark.parametrize(
    ("name", "torchs", "parameters"),
    [("elu", F.elu, {"alpha": 0.5}), ("selu", F.selu, {}), ("celu", F.celu, {"alpha": 0.5})],
)
def test_the_value_at_the_kink_is_torchs(name, torchs, parameters):
    x = torch.tensor([-0.0, 0.0, -1.0, 1.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(torchs(x, **parameters).sum(), x)
    torch.testing.assert_close(getattr(functional, f"{name}_derivative")(x, **parameters).detach(), gradient)
    torch.testing.assert_close(getattr(functional, name)(x, **parameters), torchs(x, **parameters))


def test_selu_keeps_mean_zero_and_variance_one():
    """Klambauer et al. 2017: the fixed point that its two constants are made for."""
    x = torch.linspace(-12, 12, 240001, dtype=torch.float64)
    weight = torch.exp(-0.5 * x * x) / (2 * torch.pi) ** 0.5
    y = functional.selu(x)
    assert torch.trapezoid(y * weight, x).item() == pytest.approx(0.0, abs=1e-9)
    assert torch.trapezoid(y * y * weight, x).item() == pytest.approx(1.0, abs=1e-9)


def test_celu_refuses_an_alpha_that_is_not_positive():
    for function in (functional.celu, functional.celu_derivative):
        with pytest.raises(ActivationArgumentError):
            function(torch.zeros(1), alpha=0.0)
