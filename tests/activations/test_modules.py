"""The modules: torch's own kernels where torch has the function, and our own elsewhere."""

import pytest
import torch
from activation_oracles import ELEMENTWISE
from torch import nn
from torch.nn import functional as F

from lit_gelu import activations

TORCH_KERNELS = {
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu(negative_slope=0.2)": lambda x: F.leaky_relu(x, 0.2),
    "prelu": lambda x: F.prelu(x, torch.tensor([0.25], dtype=x.dtype)),
    "elu(alpha=0.5)": lambda x: F.elu(x, 0.5),
    "selu": F.selu,
    "celu": F.celu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gaussian_gelu": F.gelu,
    "silu": F.silu,
    "swish": F.silu,
    "hard_swish": F.hardswish,
    "mish": F.mish,
    "zero_identity_map": F.gelu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hard_sigmoid": F.hardsigmoid,
    "softplus": F.softplus,
    "log_sigmoid": F.logsigmoid,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spec", TORCH_KERNELS)
def test_modules_equal_torch_kernels_bit_for_bit(spec, dtype):
    x = (torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)) * 5).to(dtype)
    y = activations.create(spec).eval().to(dtype)(x)
    assert y.dtype == dtype
    assert torch.equal(y, TORCH_KERNELS[spec](x))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_a_module_computes_what_its_function_does(name):
    """The module's own kernel and the pure function, float64: two implementations of one formula."""
    module = activations.create(name).eval().double()
    x = torch.linspace(-15, 15, 3001, dtype=torch.float64)
    torch.testing.assert_close(
        module(x),
        activations.functional.derivative(module, x, order=0),
        rtol=1e-7,
        atol=1e-8 if name == "softplus" else 1e-13,
    )


@pytest.mark.parametrize(
    "spec", ["swish(beta=1.7, learnable=True)", "gaussian_gelu(mu=0.3, sigma=1.7, learnable=True)"]
)
def test_learned_parameters_start_exactly(spec):
    learned, fixed = (
        activations.create(spec).double(),
        activations.create(spec.replace(", learnable=True", "")).double(),
    )
    x = torch.linspace(-4, 4, 17, dtype=torch.float64)
    torch.testing.assert_close(learned(x), fixed(x), rtol=1e-14, atol=0)


def test_sigmoid_gelu_is_not_taken_for_the_exact_function():
    """torch's encoder layer computes exact GELU in its fused path for any instance of nn.GELU."""
    assert not isinstance(activations.create("gelu(approximate='sigmoid')"), nn.GELU)
