"""Which way to a Hessian-vector product is taken, and that each falls back by name where it does not exist."""

import re
import warnings

import pytest
import torch
from loss_nets import Everything, classifier, everything, full_hessian, named
from probe_nets import HiddenSlope, OnceDifferentiableTanh
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from lit_gelu.curvature.loss import (
    hessian_operator,
)
from lit_gelu.errors import ArgumentError, UnsupportedRunError


class FailingDoubleBackward(torch.autograd.Function):
    """Its second derivative is NaN; its first one is right."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return NaNSlope.apply(gradient, x)


class NaNSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gradient, x):
        return gradient * (1 - x.tanh() ** 2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.nan, gradient * torch.nan


def linear_with(function, samples=16):
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 2).double(), torch.randn(samples, 3, dtype=torch.float64)
    return layer, lambda: function(layer(x)).square().mean()


def test_auto_takes_the_cached_graph_where_it_can():
    layer, closure = linear_with(torch.tanh)
    calls = []

    def counted():
        calls.append(1)
        return closure()

    with hessian_operator(counted, named(layer)) as operator:
        for _ in range(5):
            operator(torch.ones(8, dtype=torch.float64))
    assert operator.method == "reverse_over_reverse"
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (OnceDifferentiableTanh.apply, "once_differentiable"),
        (FailingDoubleBackward.apply, "is not finite"),
        (HiddenSlope.apply, "off from finite differences"),
    ],
    ids=["missing", "nan", "hidden"],
)
@pytest.mark.parametrize("with_module", [False, True])
def test_auto_falls_back_to_finite_differences_and_says_why(function, said, with_module):
    layer, closure = linear_with(function)
    vector = torch.arange(8, dtype=torch.float64)
    with hessian_operator(closure, named(layer), module=layer if with_module else None) as operator:
        product = operator(vector)
        assert operator.method == "finite_differences"
        assert said in operator.reason
        assert operator.products == 1
    smooth, closure = linear_with(torch.tanh)
    with hessian_operator(closure, named(smooth), method="reverse_over_reverse") as operator:
        torch.testing.assert_close(product, operator(vector), rtol=0, atol=1e-8)


def test_a_method_that_was_asked_for_does_not_fall_back():
    layer, closure = linear_with(OnceDifferentiableTanh.apply)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        hessian_operator(closure, named(layer), method="reverse_over_reverse")
    layer, closure = linear_with(FailingDoubleBackward.apply)
    operator = hessian_operator(closure, named(layer), method="reverse_over_reverse")
    with pytest.raises(UnsupportedRunError, match="reverse_over_reverse is not finite"):
        operator(torch.ones(8))


def test_an_error_of_the_closure_itself_is_raised_as_it_is():
    layer = nn.Linear(3, 2)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        hessian_operator(lambda: layer(torch.ones(2, 4)).sum(), named(layer))


def test_fused_attention_falls_back_by_name():
    torch.manual_seed(0)
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True).double(), torch.randn(2, 5, 8, dtype=torch.float64)

    def closure():
        return attention(x, x, x, need_weights=False)[0].square().mean()

    with hessian_operator(closure, named(attention), module=attention) as operator:
        product = operator(torch.ones(operator.size))
        assert operator.method == "finite_differences"
        assert "flash" in operator.reason
    with sdpa_kernel(SDPBackend.MATH), hessian_operator(closure, named(attention)) as exact:
        torch.testing.assert_close(product, exact(torch.ones(exact.size)), rtol=0, atol=1e-8)


def test_a_compiled_module_falls_back_and_its_original_does_not():
    model, inputs, loss = classifier()
    compiled = torch.compile(model, backend="aot_eager")
    vector = torch.ones(51, dtype=torch.float64)
    expected = full_hessian(model, inputs, loss) @ vector
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, while it compiles
        with hessian_operator(lambda: loss(compiled(inputs)), named(model)) as operator:
            torch.testing.assert_close(operator(vector), expected, rtol=0, atol=1e-8)
            assert operator.method == "finite_differences"
            assert re.search("double backward|donated buffer", operator.reason)  # which depends on what compiled before
    with hessian_operator(lambda: loss(compiled._orig_mod(inputs)), named(model)) as operator:
        torch.testing.assert_close(operator(vector), expected, rtol=0, atol=1e-12)
        assert operator.method == "reverse_over_reverse"


@pytest.mark.parametrize("method", ["reverse_over_reverse", "forward_over_reverse"])
def test_checkpointed_layers_work_without_reentry(method):
    model, inputs, loss = classifier()
    vector = torch.ones(51, dtype=torch.float64)
    expected = full_hessian(model, inputs, loss) @ vector

    def closure():
        return loss(model[2](checkpoint(model[:2], inputs, use_reentrant=False)))

    with hessian_operator(closure, named(model), method=method, module=model) as operator:
        for _ in range(2):
            torch.testing.assert_close(operator(vector), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("reduction", [{}, {"reduction": "sum"}, {"size_average": False}, {"reduce": True}])
@pytest.mark.filterwarnings("ignore:size_average and reduce args will be deprecated")
def test_forward_over_reverse_of_torchs_squared_error(reduction):
    """Torch itself ends with "ZeroTensors are immutable" where the target is a constant."""
    model, inputs, _ = classifier()
    targets, vector = torch.randn(model(inputs).shape, dtype=torch.float64), torch.ones(51, dtype=torch.float64)
    factor = 1 if reduction == {"reduction": "sum"} or "size_average" in reduction else 1 / targets.numel()
    expected = full_hessian(model, inputs, lambda outputs: factor * (outputs - targets).square().sum()) @ vector

    def closure():
        return F.mse_loss(model(inputs), targets, **reduction)

    with hessian_operator(closure, named(model), method="forward_over_reverse", module=model) as operator:
        torch.testing.assert_close(operator(vector), expected, rtol=0, atol=1e-10)


def test_forward_over_reverse_of_squared_errors_with_weights_and_without_a_mean():
    model, inputs, _ = classifier()
    targets = torch.randn(model(inputs).shape, dtype=torch.float64)
    weights, vector = torch.rand(targets.shape, dtype=torch.float64), torch.ones(51, dtype=torch.float64)

    def composed(outputs):
        squares = (outputs - targets).square()
        return (squares * weights).sum() / weights.sum() + squares[:, 0].mean()

    def closure():
        outputs = model(inputs)
        each = F.mse_loss(outputs, targets, reduction="none")
        return F.mse_loss(outputs, targets, weight=weights) + each[:, 0].mean()

    expected = full_hessian(model, inputs, composed) @ vector
    with hessian_operator(closure, named(model), method="forward_over_reverse", module=model) as operator:
        torch.testing.assert_close(operator(vector), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("method", "loss"),
    [
        ("forward_over_reverse", lambda outputs: F.soft_margin_loss(outputs, outputs.detach().sign())),
        ("reverse_over_reverse", lambda outputs: F.multi_margin_loss(outputs, outputs.detach().argmax(1))),
    ],
)
def test_a_method_that_a_loss_does_not_allow_is_refused_with_one_that_works(method, loss):
    model, inputs, _ = classifier()
    with (
        hessian_operator(lambda: loss(model(inputs)), named(model), method=method, module=model) as operator,
        pytest.raises(ArgumentError, match=rf"method='{method}'.*[^.]\. Give method='auto'.*'finite_differences'"),
    ):
        operator(torch.ones(operator.size, dtype=torch.float64))
    with hessian_operator(lambda: loss(model(inputs)), named(model), module=model) as operator:
        assert operator(torch.ones(operator.size, dtype=torch.float64)).isfinite().all()
        assert operator.method != method


class TestMish:
    """D14: the double backward of torch's mish is NaN from x = 89 on in float32, 720 in float64."""

    def net(self, dtype, scale, inplace=False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.Mish(inplace=inplace), nn.Linear(8, 1)).to(dtype)
        x = torch.randn(10, 3, dtype=dtype) * scale
        return model, lambda: model(x).square().mean()

    def test_torch_alone_gives_nan(self):
        x = torch.tensor([100.0], requires_grad=True)
        (slope,) = torch.autograd.grad(F.mish(x), x, create_graph=True)
        assert torch.autograd.grad(slope, x)[0].isnan()

    @pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 300.0), (torch.float64, 3000.0)])
    @pytest.mark.parametrize("method", ["auto", "reverse_over_reverse", "forward_over_reverse"])
    @pytest.mark.parametrize("inplace", [False, True])
    def test_products_are_finite_right_and_said(self, dtype, scale, method, inplace):
        model, closure = self.net(dtype, scale, inplace)
        torch.manual_seed(1)
        vector = torch.randn(41, dtype=dtype)
        with hessian_operator(closure, named(model), method=method, module=model) as operator:
            product = operator(vector)
            assert "mish" in operator.reason
            assert "finite_differences" not in operator.method
        with hessian_operator(closure, named(model), method="finite_differences", step=1e-5) as operator:
            expected = operator(vector)
        error = (product - expected).norm() / expected.norm()
        assert error < (0.02 if dtype == torch.float32 else 1e-5)

    def test_the_gradient_is_that_of_training(self):
        model, closure = self.net(torch.float64, 3.0)
        expected = torch.cat([g.flatten() for g in torch.autograd.grad(closure(), list(model.parameters()))])
        with hessian_operator(closure, named(model)) as operator:
            torch.testing.assert_close(operator.gradient, expected, rtol=1e-12, atol=1e-14)


class TestFiniteDifferences:
    """D7: an absolute step loses accuracy as vectors grow longer; a relative one does not."""

    @pytest.mark.parametrize("hidden", [20, 200, 2700])
    def test_the_error_in_float32_does_not_grow_with_the_number_of_parameters(self, hidden):
        model, inputs, loss = classifier(inputs=20, hidden=hidden, classes=4, samples=64, dtype=torch.float32)
        exact_model, _, _ = classifier(inputs=20, hidden=hidden, classes=4, samples=64)
        exact_model.load_state_dict(model.state_dict())
        size = sum(p.numel() for p in model.parameters())
        assert size in {504, 5004, 67504}
        signs = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(0)).mul(2).sub(1).double()
        with hessian_operator(lambda: loss(exact_model(inputs.double())), named(exact_model)) as exact:
            expected = exact(signs)
        with hessian_operator(lambda: loss(model(inputs)), named(model), method="finite_differences") as operator:
            product = operator(signs).double()
        assert (product - expected).norm() / expected.norm() < 1e-4

    @pytest.mark.parametrize(("method", "error"), [("finite_differences", 1e-3), ("one_sided_differences", 0.02)])
    @pytest.mark.parametrize("largest", [None, 900.0])
    def test_a_step_does_not_lead_out_of_a_narrow_valley(self, method, error, largest):
        # A step of 5e-3 of the parameters' length is 0.15 here, and the valley 0.02 wide.
        start = torch.cat([torch.tensor([0.01]), torch.full((900,), 1.0)])
        weight = start.clone().requires_grad_()

        def closure():
            return torch.log(torch.cosh(30 * weight[0])) + 0.5 * weight[1:].square().mean()

        exact = 900 / torch.cosh(torch.tensor(0.3, dtype=torch.float64)).item() ** 2
        along = torch.zeros(901)
        along[0] = 2.0
        with hessian_operator(closure, {"weight": weight}, method=method, largest=largest) as operator:
            assert operator(along)[0].item() == pytest.approx(2 * exact, rel=error)
        assert torch.equal(weight, start)

    def test_one_sided_differences_take_one_gradient_a_product(self):
        model, inputs, loss = classifier()
        vector = torch.randn(51, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        expected = full_hessian(model, inputs, loss) @ vector
        calls = []

        def closure():
            calls.append(1)
            return loss(model(inputs))

        with hessian_operator(closure, named(model), method="one_sided_differences", largest=10.0) as operator:
            assert len(calls) == 1
            for _ in range(3):
                torch.testing.assert_close(operator(vector), expected, rtol=0, atol=1e-6)
        assert len(calls) == 1 + 3

    def test_parameters_are_restored_bit_by_bit_after_an_exception(self):
        model, inputs, loss = classifier()
        before = [p.clone() for p in model.parameters()]
        calls = []

        def closure():
            calls.append(1)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return loss(model(inputs))

        operator = hessian_operator(closure, named(model), method="finite_differences")
        with pytest.raises(KeyboardInterrupt):
            operator(torch.ones(operator.size))
        assert len(calls) == 3
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))

    def test_graphs_recorded_before_remain_usable(self):
        model, inputs, loss = everything()
        pending = loss(model(inputs))
        with hessian_operator(lambda: loss(model(inputs)), named(model), method="finite_differences") as operator:
            operator(torch.ones(operator.size))
        pending.backward()  # a changed version counter would raise

    def test_the_zero_vector_and_zero_parameters(self):
        weight = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        closure = lambda: ((weight - 1) ** 2).sum()  # noqa: E731
        with hessian_operator(closure, {"weight": weight}, method="finite_differences") as operator:
            assert operator(torch.zeros(3)).tolist() == [0, 0, 0]
            assert operator(torch.ones(3)).tolist() == pytest.approx([2, 2, 2], rel=1e-8)

    def test_autocast_does_not_answer_with_stale_casts(self):
        model, inputs, loss = classifier(dtype=torch.float32)
        with (
            torch.autocast("cpu", dtype=torch.bfloat16),
            hessian_operator(
                lambda: loss(model(inputs)), named(model), method="finite_differences", step=0.1
            ) as operator,
        ):
            product = operator(torch.ones(operator.size))
        with hessian_operator(lambda: loss(model(inputs)), named(model)) as exact:
            expected = exact(torch.ones(exact.size))
        # bfloat16 rounds gradients by 0.4 %, little beside their change here; of stale casts they would not change.
        assert (product - expected).norm() / expected.norm() < 0.1


def test_forward_over_reverse_leaves_the_module_as_it_was_after_an_exception():
    model = Everything()
    before = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}

    def closure():
        if model.hidden.weight is not None and id(model.hidden.weight) != before["hidden.weight"]:
            raise KeyboardInterrupt
        return model(torch.zeros(1, 2, dtype=torch.long)).square().mean()

    operator = hessian_operator(closure, named(model), method="forward_over_reverse", module=model)
    with pytest.raises(KeyboardInterrupt):
        operator(torch.ones(operator.size))
    assert {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)} == before
