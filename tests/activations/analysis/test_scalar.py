"""Activations as functions of one number."""

import pytest
import torch
from torch import nn

from lit_gelu import activations
from lit_gelu.activations import ActivationArgumentError
from lit_gelu.activations.analysis.scalar import scalar_functions


def test_one_value_for_every_channel_is_one_function():
    f, slope, _ = scalar_functions(nn.PReLU(64, init=0.1))
    x = torch.tensor([-3.0, 2.0], dtype=torch.float64)
    assert f(x).tolist() == pytest.approx([-0.3, 2.0])
    assert slope(x).tolist() == pytest.approx([0.1, 1.0])
    assert activations.info("prelu(num_parameters=64)").left_asymptote == (0.25, 0.0)


def test_the_module_stays_as_it_was():
    module = nn.PReLU(3).train()
    scalar_functions(module)
    assert (module.weight.shape, module.weight.dtype, module.training) == ((3,), torch.float32, True)


def test_channels_that_differ_are_refused():
    module = nn.PReLU(3)
    with torch.no_grad():
        module.weight[1] = 0.7
    with pytest.raises(ActivationArgumentError, match="differs between its 3 channels"):
        scalar_functions(module)


@pytest.mark.parametrize("spec", ["swish(learnable=True, channels=7)", "swish(learnable=True, channels='infer')"])
def test_learned_channels_start_equal(spec):
    assert activations.compare(spec, "silu").value.largest == 0.0
    assert activations.info(spec).minimum == activations.info("silu").minimum


def test_channels_with_values_of_their_own_are_refused():
    with pytest.raises(ActivationArgumentError, match="differs between its 2 channels"):
        activations.compare("swish(beta=(1.0, 2.0))", "silu")


@pytest.mark.parametrize("coefficients", [(0.0, 1.0, 0.5), (1.0, 1.0, 1.0)])
def test_coefficients_are_no_channels(coefficients):
    class Polynomial(nn.Module):
        def __init__(self):
            super().__init__()
            self.coefficients = nn.Parameter(torch.tensor(coefficients))

        def forward(self, x):
            return sum(c * x**k for k, c in enumerate(self.coefficients))

    f, slope, bend = scalar_functions(Polynomial())
    x = torch.tensor([2.0], dtype=torch.float64)
    a, b, c = coefficients
    assert [g(x).item() for g in (f, slope, bend)] == pytest.approx([a + 2 * b + 4 * c, b + 4 * c, 2 * c])
