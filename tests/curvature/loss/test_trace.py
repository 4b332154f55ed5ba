"""Traces against the matrix, and the estimator's distribution against theory."""

import itertools
import math

import pytest
import torch
from loss_nets import everything, exact_pairs, full_hessian, named, symmetric
from scipy.stats import sem
from scipy.stats import t as student

from lit_gelu.curvature.loss import MatrixOperator, hessian_operator, hutchinson_trace, module_layout
from lit_gelu.curvature.loss import trace as trace_module
from lit_gelu.errors import ArgumentError, UnsupportedRunError

SEEDS = 500
LAYERS = {"a": [slice(0, 5)], "b": [slice(5, 9)], "c": [slice(9, 10), slice(10, 14)]}


def block_trace(matrix, name):
    return sum(matrix.diagonal()[part].sum().item() for part in LAYERS[name])


@pytest.fixture(scope="module")
def matrix():
    return symmetric(14, seed=2, shift=0.5)


@pytest.fixture(scope="module")
def runs(matrix):
    """Many seeds of 8 probes, plain and deflated."""
    operator = MatrixOperator(matrix)
    pairs = exact_pairs(matrix, 3)
    return {
        "plain": [hutchinson_trace(operator, 8, seed=seed, layout=LAYERS) for seed in range(SEEDS)],
        "deflated": [hutchinson_trace(operator, 8, seed=seed, layout=LAYERS, deflate=pairs) for seed in range(SEEDS)],
    }


@pytest.mark.parametrize("activation", ["gelu", "mish"])
def test_within_three_standard_errors_on_a_net(activation):
    model, inputs, loss = everything(activation)
    hessian = full_hessian(model, inputs, loss)
    operator = hessian_operator(lambda: loss(model(inputs)), named(model))
    layout = module_layout(operator.parameters.slices)
    estimate = hutchinson_trace(operator, 40, seed=0, layout=layout)
    assert abs(estimate.trace - hessian.trace().item()) < 3 * estimate.standard_error
    assert estimate.frobenius_norm == pytest.approx(hessian.norm().item(), rel=0.2)
    assert estimate.probes == operator.products == 40
    for name, parts in layout.items():
        exact = sum(hessian.diagonal()[part].sum().item() for part in parts)
        assert abs(estimate.by_layer[name] - exact) <= 3.5 * estimate.standard_error_by_layer[name]
    assert estimate.by_layer["unused"] == 0


@pytest.mark.parametrize("kind", ["plain", "deflated"])
class TestDistribution:
    def test_variance_is_that_of_theory(self, runs, matrix, kind):
        inner = matrix
        if kind == "deflated":
            vectors = torch.stack([pair.vector for pair in exact_pairs(matrix, 3)])
            project = torch.eye(14, dtype=torch.float64) - vectors.T @ vectors
            inner = project @ matrix @ project
        theory = 2 * (inner.square().sum() - inner.diagonal().square().sum()) / 8
        observed = torch.tensor([run.trace for run in runs[kind]], dtype=torch.float64).var()
        assert abs(observed / theory - 1) < 3 * math.sqrt(2 / SEEDS)

    def test_standard_errors_cover_the_trace_as_often_as_they_should(self, runs, matrix, kind):
        factor = student.ppf(0.975, 7)
        covered = [abs(run.trace - matrix.trace().item()) < factor * run.standard_error for run in runs[kind]]
        assert 0.90 <= sum(covered) / SEEDS <= 0.98
        layer = [
            abs(run.by_layer["b"] - block_trace(matrix, "b")) < factor * run.standard_error_by_layer["b"]
            for run in runs[kind]
        ]
        assert 0.90 <= sum(layer) / SEEDS <= 0.98


@pytest.fixture
def every_sign(monkeypatch):
    """All vectors of signs in six dimensions, one a probe: means over them are expectations."""
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=6)), dtype=torch.float64)
    monkeypatch.setattr(trace_module, "rademacher", lambda size, seed, event, number, **options: signs[number])
    return signs


@pytest.mark.parametrize("deflated", [0, 1, 2])
def test_expectations_by_layer_are_exact_whatever_is_deflated(every_sign, deflated):
    matrix, layers = symmetric(6, seed=3), {"a": [slice(0, 2)], "b": [slice(2, 3), slice(3, 6)]}
    pairs = exact_pairs(matrix, deflated)
    estimate = hutchinson_trace(MatrixOperator(matrix), 64, seed=0, layout=layers, deflate=pairs)
    assert estimate.trace == pytest.approx(matrix.trace().item(), abs=1e-12)
    assert sum(estimate.by_layer.values()) == estimate.trace
    assert estimate.by_layer["a"] == pytest.approx(matrix.diagonal()[:2].sum().item(), abs=1e-12)
    assert estimate.by_layer["b"] == pytest.approx(matrix.diagonal()[2:].sum().item(), abs=1e-12)
    if not deflated:
        assert estimate.frobenius_norm == pytest.approx(matrix.norm().item(), abs=1e-12)


@pytest.mark.parametrize("probes", [2, 3, 7])
def test_the_standard_error_is_that_of_a_mean_of_so_many(every_sign, probes):
    matrix, layers = symmetric(6, seed=3), {"a": [slice(0, 2)], "b": [slice(2, 6)]}
    estimate = hutchinson_trace(MatrixOperator(matrix), probes, seed=0, layout=layers)
    forms = [(v * (matrix @ v)).numpy() for v in every_sign[:probes]]
    for error, values in (
        (estimate.standard_error, [form.sum() for form in forms]),
        (estimate.standard_error_by_layer["a"], [form[:2].sum() for form in forms]),
        (estimate.standard_error_by_layer["b"], [form[2:].sum() for form in forms]),
    ):
        assert error == pytest.approx(sem(values), rel=1e-12)


def test_probes_end_at_the_most_and_begin_with_the_least(matrix):
    operator = MatrixOperator(matrix)
    assert hutchinson_trace(operator, 3, seed=0, accuracy=1e-9, most=17).probes == 17
    assert hutchinson_trace(operator, 3, seed=0, accuracy=1e-9).probes == 3
    assert hutchinson_trace(operator, 3, seed=0, accuracy=1e9, most=17).probes == 3
    assert hutchinson_trace(operator, 20, seed=0, accuracy=1e-9, most=17).probes == 20
    assert hutchinson_trace(operator, 17, seed=0) == hutchinson_trace(operator, 3, seed=0, accuracy=1e-9, most=17)


def test_what_no_trace_comes_of_is_refused(matrix):
    operator = MatrixOperator(matrix)
    with pytest.raises(UnsupportedRunError):
        hutchinson_trace(MatrixOperator(matrix * torch.nan), 2, seed=0)
    with pytest.raises(ArgumentError):
        hutchinson_trace(operator, 1, seed=0)
