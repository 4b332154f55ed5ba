"""The modules: torch's own kernels where torch has the function, and our own elsewhere."""

import mpmath
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
    ("spec", "formula"),
    [
        ("gelu_sigmoid", lambda x: x / (1 + mpmath.exp(mpmath.mpf("-1.702") * x))),
        ("swish(beta=2.5)", lambda x: x / (1 + mpmath.exp(mpmath.mpf("-2.5") * x))),
        ("gaussian_gelu(sigma=0.5)", lambda x: x * mpmath.ncdf(x / mpmath.mpf("0.5"))),
        ("gaussian_gelu(mu=0.25, sigma=2.0)", lambda x: x * mpmath.ncdf((x - mpmath.mpf("0.25")) / 2)),
        ("relu2", lambda x: max(x, 0) ** 2),
    ],
)
def test_our_own_modules_against_mpmath(spec, formula):
    x = torch.linspace(-6, 6, 49, dtype=torch.float64)
    with mpmath.workdps(30):
        expected = torch.tensor([float(formula(mpmath.mpf(value))) for value in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(activations.create(spec)(x), expected, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize(
    "spec", ["swish(beta=1.7, learnable=True)", "gaussian_gelu(mu=0.3, sigma=1.7, learnable=True)"]
)
def test_learned_parameters_start_exactly_and_have_right_gradients(spec):
    learned, fixed = (
        activations.create(spec).double(),
        activations.create(spec.replace(", learnable=True", "")).double(),
    )
    x = torch.linspace(-4, 4, 17, dtype=torch.float64)
    torch.testing.assert_close(learned(x), fixed(x), rtol=1e-14, atol=0)
    parameters = dict(learned.named_parameters())
    names = sorted(parameters)

    def forward(*values):
        return torch.func.functional_call(learned, dict(zip(names, values, strict=True)), (x,))

    values = tuple(parameters[name].detach().clone().requires_grad_() for name in names)
    assert torch.autograd.gradcheck(forward, values)


@pytest.mark.parametrize("spec", ["swish(learnable=True)", "gaussian_gelu(learnable=True)"])
def test_a_learned_scale_stays_positive(spec):
    module = activations.create(spec)
    optimizer = torch.optim.SGD(module.parameters(), lr=5.0)
    for _ in range(20):
        optimizer.zero_grad()
        (-module(torch.tensor([-2.0, -1.0, -0.5])).sum()).backward()
        optimizer.step()
    scale = module.beta if hasattr(module, "beta") else module.sigma
    assert 0 < scale.item() < float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_learned_modules_keep_the_input_s_dtype(dtype):
    for spec in ("swish(learnable=True)", "gaussian_gelu(learnable=True)"):
        assert activations.create(spec).to(dtype)(torch.randn(4, dtype=dtype)).dtype == dtype


def test_zero_identity_map_in_training():
    x = torch.tensor([0.7, -0.7, 2.5]).repeat(20_000, 1).requires_grad_()
    y = activations.create("zero_identity_map").train()(x)
    mask = (y != 0).to(x.dtype)
    assert torch.equal(y, mask * x)  # no rescaling
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, mask)  # the mask alone
    probability = torch.tensor([float(mpmath.ncdf(value)) for value in (0.7, -0.7, 2.5)])
    deviation = (probability * (1 - probability) / 20_000).sqrt()
    assert ((mask.mean(0) - probability).abs() < 4.5 * deviation).all()


def test_sigmoid_gelu_is_not_taken_for_the_exact_function():
    """torch's encoder layer computes exact GELU in its fused path for any instance of nn.GELU."""
    assert not isinstance(activations.create("gelu(approximate='sigmoid')"), nn.GELU)
