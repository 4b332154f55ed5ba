"""The joint forms against those of `functional`, which are tested against mpmath: one evaluation, six digits."""

import pytest
import torch

from lit_gelu.activations import registry
from lit_gelu.activations.functional import derivative
from lit_gelu.curvature.activation.formulas import joint_derivatives

SPECS = [
    *(entry.name for entry in registry.entries() if entry.joint is not None),
    "gelu_tanh",
    "gelu_sigmoid",
    "swish(beta=2.0)",
    "elu(alpha=0.5)",
    "celu(alpha=0.3)",
    "leaky_relu(negative_slope=0.2)",
    "softplus(beta=3.0)",
    "gaussian_gelu(mu=0.6, sigma=2.5)",
    "prelu",  # no joint form
    "log_sigmoid",
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("dtype", "accuracy"), [(torch.float32, 2e-6), (torch.float64, 1e-13)])
def test_values_derivatives_and_gate(spec, dtype, accuracy):
    x = torch.cat([torch.linspace(-40, 40, 40_001), torch.linspace(-1e-3, 1e-3, 2001), torch.tensor([0.0])]).to(dtype)
    parts = joint_derivatives(registry.create(spec).to(dtype), registry)(x)
    module = registry.create(spec).double()
    value, first, second = (derivative(module, x.double(), order).detach() for order in (0, 1, 2))
    scale = value.abs().clamp(min=1)
    assert ((parts.value - value).abs() <= accuracy * scale).all()
    assert ((parts.first - first).abs() <= accuracy).all()
    assert ((parts.second - second).abs() <= accuracy * 10).all()
    at_zero = derivative(module, torch.zeros(1, dtype=torch.float64), 0)
    if at_zero.item() == 0:
        gate = torch.where(x == 0, first, value / x.double())
        assert ((parts.gate - gate).abs() <= accuracy).all()
    else:
        assert parts.gate is None or parts.gate.isnan().all()


@pytest.mark.parametrize("spec", ["gelu", "gelu_tanh", "silu", "mish"])
def test_falling_on_the_whole_left_as_far_as_float32_goes(spec):
    """f' < 0 below the minimum, however small: a difference of rounded terms would give either sign."""
    x = torch.linspace(-9.0, -1.5, 10_001)
    assert (joint_derivatives(registry.create(spec), registry)(x).first < 0).all()


def test_a_joint_form_of_a_user_takes_the_present_arguments():
    def joint(x, scale=1.0):
        return scale * x**3, 3 * scale * x**2, 6 * scale * x, scale * x**2

    with registry.scope():
        registry.register("cube", joint=joint)(lambda x, scale=1.0: torch.full_like(x, torch.nan))
        parts = joint_derivatives(registry.create("cube(scale=0.5)"), registry)(torch.tensor([2.0]))
    assert [part.item() for part in parts] == [4.0, 6.0, 6.0, 2.0]
