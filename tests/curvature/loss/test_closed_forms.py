"""Hessian and Gauss-Newton matrix of models whose curvature is known in closed form."""

from functools import partial

import pytest
import torch
from loss_nets import named
from torch import nn
from torch.nn import functional as F

from lit_gelu.curvature.loss import (
    extreme_eigenvalues,
    gauss_newton_operator,
    hessian_operator,
    hutchinson_trace,
    spectral_density,
)

SAMPLES, INPUTS, CLASSES = 40, 5, 3


def dense(operator):
    return torch.stack([operator(row) for row in torch.eye(operator.size, dtype=torch.float64)])


def linear(outputs):
    torch.manual_seed(0)
    return nn.Linear(INPUTS, outputs, bias=False).double(), torch.randn(SAMPLES, INPUTS, dtype=torch.float64)


def cases():
    torch.manual_seed(1)
    model, x = linear(1)
    target = torch.randn(SAMPLES, 1, dtype=torch.float64)
    yield model, x, lambda z: (z - target).square().mean(), 2 / SAMPLES * x.T @ x

    model, x = linear(1)
    y = torch.randint(0, 2, (SAMPLES, 1)).double()
    p = torch.sigmoid(model(x)).detach()
    yield model, x, partial(F.binary_cross_entropy_with_logits, target=y), x.T @ (p * (1 - p) * x) / SAMPLES

    model, x = linear(CLASSES)
    y = torch.randint(0, CLASSES, (SAMPLES,))
    p = torch.softmax(model(x), 1).detach()
    inner = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)  # [samples, classes, classes]
    kronecker = torch.einsum("nij,na,nb->iajb", inner, x, x).reshape(CLASSES * INPUTS, -1) / SAMPLES
    yield model, x, partial(F.cross_entropy, target=y), kronecker


@pytest.fixture(params=range(3), ids=["linear", "logistic", "softmax"])
def case(request):
    return list(cases())[request.param]


def test_hessian_and_gauss_newton_matrix_of_a_linear_model(case):
    model, x, loss, expected = case
    hessian = hessian_operator(lambda: loss(model(x)), named(model))
    gauss_newton = gauss_newton_operator(lambda: model(x), loss, named(model))
    for operator in (hessian, gauss_newton):
        torch.testing.assert_close(dense(operator), expected, rtol=0, atol=1e-15)


def test_spectrum(case):
    model, x, loss, expected = case
    values = torch.linalg.eigvalsh(expected)
    operator = hessian_operator(lambda: loss(model(x)), named(model))
    largest, smallest = extreme_eigenvalues(operator, steps=operator.size, which="both")
    assert largest.value == pytest.approx(values[-1].item(), abs=1e-12)
    assert smallest.value == pytest.approx(values[0].item(), abs=1e-12)
    estimate = hutchinson_trace(operator, 30, seed=0)
    assert abs(estimate.trace - values.sum().item()) < 3 * estimate.standard_error
    density = spectral_density(operator, steps=operator.size, runs=3, seed=0)
    assert density.nodes.max().item() == pytest.approx(values[-1].item(), abs=1e-12)
