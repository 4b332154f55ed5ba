"""Hessian-vector products against the full Hessian of torch.func.hessian in float64."""

import pytest
import torch
from loss_nets import ACTIVATIONS, classifier, everything, full_hessian, named
from torch import nn

from lit_gelu.curvature.loss import (
    ParameterLayout,
    hessian_operator,
    symmetry_error,
)
from lit_gelu.errors import ArgumentError, UnsupportedRunError

TOLERANCE = {"reverse_over_reverse": 1e-12, "forward_over_reverse": 1e-12, "finite_differences": 5e-9}


def random_vector(size, seed=1):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("method", TOLERANCE)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_equal_the_full_hessian_with_attention_norm_tied_frozen_and_unused_parameters(activation, method):
    model, inputs, loss = everything(activation)
    hessian = full_hessian(model, inputs, loss)
    with hessian_operator(lambda: loss(model(inputs)), named(model), method=method, module=model) as operator:
        assert operator.size == len(hessian)
        for seed in range(3):
            vector = random_vector(operator.size, seed)
            torch.testing.assert_close(operator(vector), hessian @ vector, rtol=0, atol=TOLERANCE[method])
        assert operator.method == method
        assert operator.products == 3


def test_frozen_parameters_have_no_place_and_unused_ones_have_zeros():
    model, inputs, loss = everything()
    with hessian_operator(lambda: loss(model(inputs)), named(model)) as operator:
        assert not any(name.startswith("frozen") for name in operator.layout)
        product = operator(torch.ones(operator.size))
        assert operator.layout["unused.weight"].stop - operator.layout["unused.weight"].start == 6
        assert not product[operator.layout["unused.weight"]].any()
        assert product[operator.layout["hidden.weight"]].any()


def test_tied_weights_have_one_place_even_when_given_under_both_names():
    model, inputs, loss = everything()
    twice = dict(model.named_parameters(remove_duplicate=False))
    assert "head.weight" in twice
    with hessian_operator(lambda: loss(model(inputs)), twice) as operator:
        assert "head.weight" not in operator.layout
        assert operator.size == ParameterLayout(named(model)).size


@pytest.mark.parametrize("method", TOLERANCE)
def test_loss_and_gradient_are_those_of_autograd(method):
    model, inputs, loss = classifier()
    value = loss(model(inputs))
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(value, list(model.parameters()))])
    with hessian_operator(lambda: loss(model(inputs)), named(model), method=method, module=model) as operator:
        torch.testing.assert_close(operator.gradient, gradient, rtol=1e-14, atol=1e-15)
        torch.testing.assert_close(operator.loss, value.detach())


@pytest.mark.parametrize("method", TOLERANCE)
def test_nothing_of_the_model_changes(method):  # D1: eval mode left on, .grad zeroed
    model, inputs, loss = classifier()
    loss(model(inputs)).backward()
    before = {name: (p.clone(), p.grad.clone(), p._version) for name, p in model.named_parameters()}
    ids = {name: id(p) for name, p in model.named_parameters()}
    model[1].eval()
    with hessian_operator(lambda: loss(model(inputs)), named(model), method=method, module=model) as operator:
        operator(torch.ones(operator.size))
    assert [module.training for module in model] == [True, False, True]
    for name, p in model.named_parameters():
        assert id(p) == ids[name]
        assert torch.equal(p, before[name][0])
        assert torch.equal(p.grad, before[name][1])
        assert p._version == before[name][2]


def test_gradients_being_accumulated_stay_as_they_are():  # D1
    model, inputs, loss = classifier()
    loss(model(inputs)).backward()
    with hessian_operator(lambda: loss(model(inputs)), named(model)) as operator:
        operator(torch.ones(operator.size))
    loss(model(inputs)).backward()
    other, _, _ = classifier()
    for _ in range(2):
        loss(other(inputs)).backward()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


@pytest.mark.parametrize("method", TOLERANCE)
def test_works_where_gradients_are_switched_off(method):
    model, inputs, loss = classifier()
    hessian = full_hessian(model, inputs, loss)
    vector = random_vector(len(hessian))
    with (
        torch.no_grad(),
        hessian_operator(lambda: loss(model(inputs)), named(model), method=method, module=model) as op,
    ):
        torch.testing.assert_close(op(vector), hessian @ vector, rtol=0, atol=TOLERANCE[method])


def test_the_operator_is_symmetric_and_fresh_dropout_is_found_out():
    model, inputs, loss = classifier(hidden=30)
    model.insert(1, nn.Dropout(0.5))
    rng = torch.get_rng_state()

    def replayed():
        torch.set_rng_state(rng)
        return loss(model(inputs))

    with hessian_operator(replayed, named(model), method="forward_over_reverse", module=model) as operator:
        assert symmetry_error(operator) < 1e-10
    with hessian_operator(
        lambda: loss(model(inputs)), named(model), method="forward_over_reverse", module=model
    ) as operator:
        assert symmetry_error(operator) > 1e-3


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1), (torch.float16, 0.02)])
def test_narrow_parameters_have_float32_vectors(dtype, tolerance):
    model, inputs, loss = classifier(dtype=dtype)
    wide = classifier()[0]
    wide.load_state_dict(model.state_dict())
    hessian = full_hessian(wide, inputs.double(), loss)
    vector = random_vector(len(hessian))
    with hessian_operator(lambda: loss(model(inputs)), named(model)) as operator:
        assert operator.dtype == torch.float32
        product = operator(vector)
    assert product.dtype == torch.float32
    assert (product - hessian @ vector).norm() / (hessian @ vector).norm() < tolerance


def test_parameters_of_several_types_share_the_widest():
    model = nn.Sequential(nn.Linear(3, 4).double(), nn.Linear(4, 2))
    x = torch.randn(5, 3, dtype=torch.float64)
    with hessian_operator(lambda: model[1](model[0](x).tanh().float()).square().sum(), named(model)) as operator:
        assert operator.dtype == torch.float64
        assert symmetry_error(operator) < 1e-5


def test_a_loss_without_curvature_gives_zeros():
    model = nn.Linear(3, 1)
    with hessian_operator(lambda: model(torch.ones(2, 3)).sum(), named(model)) as operator:
        assert not operator(torch.ones(4)).any()


def test_sparse_gradients_are_dense_in_the_vectors():
    embedding = nn.Embedding(4, 2, sparse=True)
    with hessian_operator(lambda: embedding(torch.tensor([1, 1, 3])).square().sum(), named(embedding)) as operator:
        # Each of rows 1 (twice) and 3 (once) has the second derivative 2 per use.
        assert operator(torch.ones(8)).tolist() == [0, 0, 4, 4, 0, 0, 2, 2]


def test_products_after_closing_are_refused_and_the_graph_is_released():
    model, inputs, loss = classifier()
    with hessian_operator(lambda: loss(model(inputs)), named(model)) as operator:
        operator(torch.ones(operator.size))
    with pytest.raises(ArgumentError, match="closed"):
        operator(torch.ones(operator.size))
    assert operator._batches == []


class TestRefuses:
    def test_a_nan_loss(self):  # D11: NaN reported as a number
        model, inputs, loss = classifier()
        inputs[0] = torch.nan
        with pytest.raises(UnsupportedRunError, match="The loss is nan"):
            hessian_operator(lambda: loss(model(inputs)), named(model))

    def test_an_infinite_gradient_and_names_where(self):  # D11
        weight, other = torch.zeros(2, requires_grad=True), torch.ones(2, requires_grad=True)
        with pytest.raises(UnsupportedRunError, match="not finite for weight"):
            hessian_operator(lambda: weight.sqrt().sum() + other.square().sum(), {"weight": weight, "other": other})

    def test_a_product_that_no_method_makes_finite(self):  # D11
        weight = torch.ones(2, requires_grad=True)
        operator = hessian_operator(lambda: (weight**3).sum(), {"weight": weight})
        with pytest.raises(UnsupportedRunError, match="vector holds"):
            operator(torch.tensor([torch.nan, 0.0]))

    def test_a_loss_that_is_no_scalar(self):
        model, inputs, _ = classifier()
        with pytest.raises(ArgumentError, match=r"shape \(20, 3\).*scalar"):
            hessian_operator(lambda: model(inputs), named(model))
        with pytest.raises(ArgumentError, match="float"):
            hessian_operator(lambda: 1.0, named(model))

    def test_parameters_that_are_all_frozen(self):
        model, inputs, loss = classifier()
        model.requires_grad_(False)
        with pytest.raises(ArgumentError, match="None of the 4 parameters requires a gradient"):
            hessian_operator(lambda: loss(model(inputs)), named(model))

    def test_a_loss_that_does_not_depend_on_them(self):
        model, inputs, loss = classifier()
        other, _, _ = classifier(seed=1)
        with pytest.raises(ArgumentError, match="does not depend on any of the 4"):
            hessian_operator(lambda: loss(model(inputs)), named(other))
        with pytest.raises(ArgumentError, match="does not depend"):
            hessian_operator(lambda: loss(model(inputs)).detach(), named(model))

    def test_complex_parameters(self):
        weight = torch.ones(2, dtype=torch.complex64, requires_grad=True)
        with pytest.raises(ArgumentError, match="complex64"):
            hessian_operator(lambda: weight.abs().sum(), {"weight": weight})

    def test_vectors_of_another_size(self):
        model, inputs, loss = classifier()
        operator = hessian_operator(lambda: loss(model(inputs)), named(model))
        with pytest.raises(ArgumentError, match=r"shape \(3,\).*51 parameters"):
            operator(torch.ones(3))

    def test_methods_that_do_not_exist_or_lack_the_module(self):
        model, inputs, loss = classifier()
        with pytest.raises(ArgumentError, match="method='newton'"):
            hessian_operator(lambda: loss(model(inputs)), named(model), method="newton")
        with pytest.raises(ArgumentError, match="Give module="):
            hessian_operator(lambda: loss(model(inputs)), named(model), method="forward_over_reverse")
