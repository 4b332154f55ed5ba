"""Products against full matrices in float64 and closed forms; flat vectors, and moving parameters along them."""

import pytest
import torch
from loss_nets import ACTIVATIONS, classifier, everything, full_hessian, named
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F

from lit_gelu.curvature.loss import ParameterLayout, curvature_along, hessian_operator, module_layout
from lit_gelu.curvature.loss.parameters import displaced
from lit_gelu.errors import ArgumentError, UnsupportedRunError

SIZES = [13, 6, 1]


def hessian_of(model, inputs, loss):
    return hessian_operator(lambda: loss(model(inputs)), named(model))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_products_are_those_of_the_full_matrix_with_attention_norm_tied_frozen_and_unused_parts(activation):
    model, inputs, loss = everything(activation)
    matrix = full_hessian(model, inputs, loss)
    twice = dict(model.named_parameters(remove_duplicate=False))
    with hessian_of(model, inputs, loss) as operator:
        assert operator.size == len(matrix) == ParameterLayout(twice).size
        assert not {"frozen.weight", "head.weight"} & operator.parameters.slices.keys()
        for seed in range(3):
            vector = torch.randn(operator.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            torch.testing.assert_close(operator(vector), matrix @ vector, rtol=0, atol=1e-12)
        assert not operator(vector)[operator.parameters.slices["unused.weight"]].any()
        assert operator.products == 4
    with pytest.raises(ArgumentError):  # closed, and its graph is gone
        operator(vector)


def test_loss_and_gradient_are_those_of_autograd_and_nothing_of_the_model_changes():
    model, inputs, loss = classifier()
    loss(model(inputs)).backward()
    value = loss(model(inputs))
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(value, list(model.parameters()))])
    before = {name: (p.clone(), p.grad.clone(), p._version) for name, p in model.named_parameters()}
    model[1].eval()
    with torch.no_grad(), hessian_of(model, inputs, loss) as operator:
        operator(torch.ones(operator.size))
    torch.testing.assert_close(operator.gradient, gradient, rtol=1e-14, atol=1e-15)
    torch.testing.assert_close(operator.loss, value.detach())
    assert [module.training for module in model] == [True, False, True]
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name][0])
        assert torch.equal(p.grad, before[name][1])
        assert p._version == before[name][2]


def test_losses_without_curvature_and_sparse_gradients():
    model = nn.Linear(3, 1)
    with hessian_operator(lambda: model(torch.ones(2, 3)).sum(), named(model)) as operator:
        assert not operator(torch.ones(4)).any()
    embedding = nn.Embedding(4, 2, sparse=True)
    with hessian_operator(lambda: embedding(torch.tensor([1, 1, 3])).square().sum(), named(embedding)) as operator:
        # Each of rows 1 (twice) and 3 (once) has the second derivative 2 per use.
        assert operator(torch.ones(8)).tolist() == [0, 0, 4, 4, 0, 0, 2, 2]


class WrittenOut(nn.Module):
    def forward(self, x):
        return x * torch.tanh(F.softplus(x))


@pytest.mark.parametrize("inplace", [False, True])
def test_mish_of_large_inputs_is_finite_and_noted(inplace):
    """The double backward of torch's mish is NaN from x = 720 on in float64."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Mish(inplace=inplace), nn.Linear(8, 1)).double()
    x, targets = torch.randn(10, 3, dtype=torch.float64) * 3000, torch.zeros(10, 1, dtype=torch.float64)
    loss = lambda z: F.mse_loss(z, targets)  # noqa: E731
    operator = hessian_of(model, x, loss)
    product = operator(torch.ones(operator.size))
    assert product.isfinite().all()
    assert "mish" in operator.note
    expected = (
        full_hessian(nn.Sequential(model[0], WrittenOut(), model[2]), x, loss) @ torch.ones(operator.size).double()
    )
    torch.testing.assert_close(product, expected, rtol=1e-9, atol=1e-9 * expected.abs().max().item())


class Squared(torch.autograd.Function):
    """x^2, with a pass back that autograd sees, or that hides its derivative, or that can be used once."""

    @staticmethod
    def forward(ctx, x, how):
        ctx.save_for_backward(x)
        ctx.how = how
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if ctx.how == "hidden":
            return grad * 2 * x.detach(), None
        return grad * 2 * x, None


class Once(Squared):
    backward = staticmethod(torch.autograd.function.once_differentiable(Squared.backward))


def test_a_custom_function_that_hides_its_derivative_is_refused_and_an_honest_one_is_right():
    weight = torch.linspace(1, 2, 5, dtype=torch.float64).requires_grad_()
    vector = torch.ones(5, dtype=torch.float64)

    def loss(how, function=Squared):
        return lambda: (function.apply(weight, how) + weight.exp()).sum()

    honest = hessian_operator(loss("seen"), {"weight": weight})
    torch.testing.assert_close(honest(vector), 2 + weight.detach().exp(), rtol=1e-12, atol=0)
    with pytest.raises(ArgumentError):
        hessian_operator(loss("hidden"), {"weight": weight})(vector)
    with pytest.raises(ArgumentError):
        hessian_operator(loss("once", Once), {"weight": weight})(vector)


def test_what_torch_cannot_differentiate_twice_is_refused():
    torch.manual_seed(0)
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 5, 8)
    operator = hessian_operator(lambda: attention(x, x, x, need_weights=False)[0].square().mean(), named(attention))
    with pytest.raises(ArgumentError):  # the fused kernel; a LossProbe takes the one that can
        operator(torch.ones(operator.size))


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_curvature_along_an_update_is_that_of_the_matrix_before_it(rate):
    model, inputs, loss = classifier()
    hessian = full_hessian(model, inputs, loss)
    with hessian_of(model, inputs, loss) as operator:
        update = -rate * operator.gradient
        along = curvature_along(operator, update)
        form, slope = (update @ hessian @ update).item(), (operator.gradient @ update).item()
        assert along.curvature == pytest.approx(form / (update @ update).item(), rel=1e-9)
        assert along.slope == pytest.approx(slope, rel=1e-9)
        assert along.stability == pytest.approx(form / (-2 * slope), rel=1e-9)
        assert curvature_along(operator, update * 0).curvature != 0  # NaN: there is none


def problem():
    model, inputs, _ = classifier()
    targets = torch.randint(0, 3, (20,), generator=torch.Generator().manual_seed(0))
    hessian = full_hessian(model, inputs, lambda outputs: F.cross_entropy(outputs, targets))
    return model, inputs, targets, hessian, torch.linspace(-1, 1, len(hessian), dtype=torch.float64)


@pytest.mark.parametrize("keep_graphs", [True, False])
def test_uneven_batches_are_weighted_by_their_samples(keep_graphs):
    model, inputs, targets, hessian, vector = problem()
    batches = list(zip(inputs.split(SIZES), targets.split(SIZES), strict=True))
    closures = [lambda x=x, y=y: F.cross_entropy(model(x), y) for x, y in batches]
    operator = hessian_operator(closures, named(model), samples=SIZES, keep_graphs=keep_graphs)
    for _ in range(2):
        torch.testing.assert_close(operator(vector), hessian @ vector, rtol=0, atol=1e-13)
    for ratio, (x, y) in zip(operator.along_gradients(), batches, strict=True):
        of_batch = full_hessian(model, x, lambda outputs, y=y: F.cross_entropy(outputs, y))
        gradient = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
        g = torch.cat([part.flatten() for part in gradient])
        torch.testing.assert_close(ratio, g @ of_batch @ g / (g @ g), rtol=1e-12, atol=0)
    assert operator.loss.item() == pytest.approx(F.cross_entropy(model(inputs), targets).item(), rel=1e-14)
    with pytest.raises(ArgumentError):
        hessian_operator([lambda: None] * 3, named(model), samples=[1, 2])


def test_without_kept_graphs_one_batch_is_recorded_at_a_time():
    weight = torch.ones(3, requires_grad=True)
    for keep_graphs, expected in ((True, 4), (False, 1)):
        factors, alive = [], []  # each graph holds one

        def loss(factors=factors, alive=alive):
            factor = torch.rand(3)
            factors.append(StorageWeakRef(factor.untyped_storage()))
            alive.append(sum(not each.expired() for each in factors))
            return ((weight * factor) ** 3).sum()

        with hessian_operator([loss] * 4, {"weight": weight}, keep_graphs=keep_graphs) as hessian:
            hessian(torch.ones(3))
            assert max(alive) == expected


def test_what_is_not_finite_is_reported_and_never_a_number():
    model, inputs, loss = classifier()
    inputs[0] = torch.nan
    with pytest.raises(UnsupportedRunError):
        hessian_of(model, inputs, loss)
    weight, other = torch.zeros(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with pytest.raises(UnsupportedRunError):
        hessian_operator(lambda: weight.sqrt().sum() + other.square().sum(), {"weight": weight, "other": other})
    with pytest.raises(UnsupportedRunError):
        hessian_operator(lambda: (other**3).sum(), {"other": other})(torch.tensor([torch.nan, 0.0]))


def test_what_has_no_curvature_is_refused():
    model, inputs, loss = classifier()
    other, _, _ = classifier(seed=1)
    parameters, complex_one = named(model), torch.ones(2, dtype=torch.complex64, requires_grad=True)
    frozen = {name: p.detach() for name, p in parameters.items()}
    for closure, weights in [
        (lambda: model(inputs), parameters),
        (lambda: 1.0, parameters),
        (lambda: loss(model(inputs)), frozen),
        (lambda: loss(model(inputs)), named(other)),
        (lambda: loss(model(inputs)).detach(), parameters),
        (lambda: complex_one.abs().sum(), {"weight": complex_one}),
    ]:
        with pytest.raises(ArgumentError):
            hessian_operator(closure, weights)
    with pytest.raises(ArgumentError):
        hessian_of(model, inputs, loss)(torch.ones(3))


def test_split_undoes_flatten_and_slices_say_where():
    model, _, _ = everything()
    layout = ParameterLayout(named(model))
    values = layout.values()
    for (name, parameter), piece in zip(layout.tensors.items(), layout.split(values), strict=True):
        assert torch.equal(piece, parameter)
        assert torch.equal(values[layout.slices[name]], parameter.detach().flatten())
    assert torch.equal(layout.flatten(layout.split(values)), values)
    assert layout.size == sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_displaced_parameters_come_back_bit_by_bit(dtype):
    layer = nn.Linear(30, 20).to(dtype)
    layout, before = ParameterLayout(named(layer)), [p.clone() for p in layer.parameters()]
    versions = [p._version for p in layer.parameters()]
    offset = torch.full((layout.size,), 0.25, dtype=layout.dtype)
    moved = []

    def move_and_fail():
        with displaced(layout) as move:
            move(offset)
            moved.extend(p.clone() for p in layer.parameters())
            move(-offset)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        move_and_fail()
    for p, original, there in zip(layer.parameters(), before, moved, strict=True):
        assert torch.equal(p, original)
        assert torch.equal(there, (original.to(layout.dtype) + 0.25).to(dtype))
    assert [p._version for p in layer.parameters()] == versions


def test_module_layout_joins_what_belongs_together():
    model, _, _ = everything()
    layout = ParameterLayout(named(model))
    modules = module_layout(layout.slices)
    assert set(modules) == {"embedding", "norm", "attention", "attention.out_proj", "hidden", "unused"}
    assert sum(part.stop - part.start for parts in modules.values() for part in parts) == layout.size


def test_sharded_parameters_are_refused():
    weight = torch.ones(2, requires_grad=True)
    weight.device_mesh = object()
    with pytest.raises(ArgumentError):
        ParameterLayout({"weight": weight})
