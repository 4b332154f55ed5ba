"""Mish."""

import pytest
import torch
from activation_contract import ActivationContract
from activation_oracles import cases_of
from torch.nn import functional as F

from lit_gelu.activations.functional import mish, mish_derivative


class TestMish(ActivationContract):
    cases = cases_of("mish")


def test_extrema_and_inflections():
    """Solved with mpmath at 30 digits."""
    x = torch.tensor([-1.1924312145155, -2.25637639636, 1.49057117949], dtype=torch.float64)
    assert mish(x)[0].item() == pytest.approx(-0.30884341301725, abs=1e-13)
    first = mish_derivative(x)
    assert first.tolist() == pytest.approx([0.0, -0.112526, 1.08849816125], abs=1e-6)
    assert first[2].item() == pytest.approx(1.08849816125, abs=1e-11)
    assert mish_derivative(x, order=2)[1:].abs().max().item() < 1e-11


@pytest.mark.parametrize(("dtype", "x"), [(torch.float32, 100.0), (torch.float16, 12.5), (torch.float64, 720.0)])
def test_its_second_derivative_exists_where_torch_gives_nan(dtype, x):
    """torch's own double backward divides infinity by infinity there; the guard says when that has been mended."""
    point = torch.tensor([x], dtype=dtype, requires_grad=True)
    (first,) = torch.autograd.grad(F.mish(point).sum(), point, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), point)
    assert second.isnan().all()
    assert abs(mish_derivative(point, order=2).item()) < 1e-5
