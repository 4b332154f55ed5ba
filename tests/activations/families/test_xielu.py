"""xIELU."""

import mpmath
import pytest
import torch

from lit_gelu import activations
from lit_gelu.activations.functional import derivative
from lit_gelu.errors import ArgumentError
from lit_gelu.export import OnnxPredictor, export_onnx


def test_learned_coefficients_stay_in_their_ranges_and_come_back():
    module = activations.create("xielu(alpha_p=1.5, alpha_n=2.0)")
    with torch.no_grad():
        module.log_p.fill_(-5.0)
        module.log_n.fill_(-5.0)
    assert module.alpha_p.item() > 0
    assert module.alpha_n.item() > module.beta
    twin = activations.create(str(activations.spec_of(module)))
    twin.load_state_dict(module.state_dict())
    x = torch.linspace(-3, 3, 20)
    assert torch.equal(twin(x), module(x))
    torch.testing.assert_close(derivative(module, x, 0), module(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha_n", [1.9, 2.1, 10.0, 4096.0])
def test_a_module_keeps_its_digits_below_0(alpha_n):
    x = -torch.logspace(-6, 0, 2001)
    values = activations.create(f"xielu(alpha_n={alpha_n}, learnable=False)")(x).double()
    exact = [float(alpha_n * (mpmath.expm1(v) - v) + v / 2) for v in map(mpmath.mpf, x.tolist())]
    exact = torch.tensor(exact, dtype=torch.float64)
    x = x.double()
    room = exact.abs() + (x * (alpha_n * torch.expm1(x) + 0.5)).abs()
    assert ((values - exact).abs() <= 8 * torch.finfo(torch.float32).eps * room).all()


@pytest.mark.parametrize("alpha_n", [0.8, 1.1, 2.0, 5.0, 30.0])
def test_a_file_is_finite_where_the_function_is_and_keeps_its_digits(tmp_path, alpha_n):
    """Against mpmath; near 0 the terms of size alpha_n x cancel, so their last place is the room there."""
    path, beta = tmp_path / "net.onnx", 0.5
    export_onnx(activations.create(f"xielu(alpha_n={alpha_n})"), path, torch.zeros(2, 4))
    largest = torch.finfo(torch.float32).max
    far = -torch.logspace(0, 38, 200) * (0.99 * largest / 1e38 / max(alpha_n - beta, 1.0))
    x = torch.cat([far, -torch.linspace(0, 20, 400), -torch.logspace(-8, 0, 400)])
    values = torch.from_numpy(OnnxPredictor(path, ["CPUExecutionProvider"])(x.reshape(-1, 4).numpy())).reshape(-1)
    exact = [float(alpha_n * (mpmath.expm1(v) - v) + beta * v) for v in map(mpmath.mpf, x.tolist())]
    exact = torch.tensor(exact, dtype=torch.float64)
    room = exact.abs() + alpha_n * x.double().abs().clamp(max=1.0)
    assert ((values - exact).abs() <= 8 * torch.finfo(torch.float32).eps * room).all()


@pytest.mark.parametrize("arguments", [{"alpha_p": 0.0}, {"alpha_n": 0.5}, {"beta": -1.0}])
def test_numbers_out_of_range_are_refused(arguments):
    with pytest.raises(ArgumentError, match=next(iter(arguments))):
        activations.create("xielu", **arguments)


def test_parameters_with_a_dimension_take_an_input_without_one():
    for x in (torch.linspace(-3, 3, 7), torch.tensor(2.0), torch.tensor(-2.0)):
        expected = torch.where(x > 0, 0.8 * x * x + 0.5 * x, 0.8 * (torch.exp(x) - 1 - x) + 0.5 * x)
        torch.testing.assert_close(activations.create("xielu")(x), expected, rtol=1e-5, atol=1e-6)
