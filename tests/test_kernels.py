"""`fuse` changes what computes an activation, and nothing else that can be seen of a model."""

import copy
import pickle

import pytest
import torch
from compiled_activations import compiled  # noqa: F401 - a fixture
from loss_monitor_nets import Net
from probe_nets import batch_of
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from lit_gelu import activations, kernels, surgery
from lit_gelu.activations import ActivationRegistry
from lit_gelu.curvature.loss import hessian_operator
from lit_gelu.curvature.probe.loss_probe import LossProbe

ACTIVATIONS = [nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.ELU(0.5), nn.Hardswish(), nn.SiLU(inplace=True)]
# Each with its parameters changed from where they start, so that gradients by them are told apart.
COMPILED = ["gaussian_gelu(learnable=True, channels=4)", "swish(learnable=True)", "xielu", "laplace_linear", "geglu"]


def net():
    torch.manual_seed(0)
    layers = [layer for each in ACTIVATIONS for layer in (nn.Linear(8, 8), copy.deepcopy(each))]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(8, 3))


def halves(dtype):
    """Return all finite numbers of a 16-bit dtype, in rows."""
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    x = x[x.isfinite()]
    return x[: len(x) // 256 * 256].reshape(-1, 256)


def test_names_state_hooks_and_specs_stay_and_unfuse_undoes_it():
    model, seen = net(), []
    keys, modules, texts = list(model.state_dict()), list(model.modules()), repr(model)
    specs = [(site.name, str(site.spec)) for site in surgery.find_sites(model)]
    before = [dict(vars(module)) for module in modules]
    handle = model[1].register_forward_hook(lambda *_: seen.append(1))
    assert kernels.fuse(kernels.fuse(model)) is model
    assert all(map(kernels.is_fused, model[1:-3:2]))
    assert all(a is b for a, b in zip(modules, model.modules(), strict=True))
    assert (list(model.state_dict()), repr(model)) == (keys, texts)
    assert [(site.name, str(site.spec)) for site in surgery.find_sites(model)] == specs
    model(torch.zeros(1, 8))
    assert seen == [1]
    handle.remove()
    kernels.unfuse(model)
    assert [dict(vars(module)) for module in modules] == before


def test_what_gains_nothing_or_may_do_more_is_left_alone():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return x.sin()

    class Subclass(nn.GELU):
        pass

    registry = ActivationRegistry()
    registry.register("counts")(Counts)
    left = [nn.ReLU(), nn.Tanh(), nn.PReLU(), nn.Identity(), nn.Linear(2, 2), Counts(), Subclass()]
    left += [activations.create(name) for name in ("identity", "zero_identity_map", "glu")]
    kernels.fuse(nn.Sequential(*left), registry)
    kernels.fuse(nn.Sequential(*left))
    assert not any(kernels.is_fused(module) for module in left)


def test_copies_and_pickles_are_fused_apart():
    model = kernels.fuse(net())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert kernels.is_fused(other[1])
        assert vars(other[1])["forward"].args[0] is other[1]
        assert torch.equal(other(torch.ones(2, 8)), model(torch.ones(2, 8)))


def test_a_swap_and_its_undo_leave_what_is_fused():
    model = kernels.fuse(net())
    report = surgery.swap(model, {nn.GELU: "silu"})
    assert type(model[1]) is nn.SiLU
    report.undo()
    assert kernels.is_fused(model[1])


ROWS = [
    *("gelu_tanh", "silu", "elu(alpha=0.7)", "hard_swish", "gaussian_gelu(mu=0.5, sigma=2.0)"),
    *(
        pytest.param(spec, marks=pytest.mark.full)
        for spec in (
            *("gelu", "gelu_sigmoid", "swish(beta=1.7)", "mish", "selu", "celu", "softplus", "relu2"),
            "gaussian_gelu(sigma=0.1)",
        )
    ),
]


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("spec", ROWS)
def test_every_16_bit_number_is_rounded_once_with_its_tail(spec):
    """To one unit in the last place of the float64 functions, down to 1e-36."""
    fused = kernels.fuse(activations.create(spec))
    for dtype in (torch.bfloat16, torch.float16):
        x = halves(dtype).requires_grad_()
        assert kernels.explain(fused, x).code == "formula"
        y = fused(x)
        (slope,) = torch.autograd.grad(y, x, torch.ones_like(y))
        for order, values in enumerate((y, slope)):
            exact = activations.functional.derivative(spec, x.detach().double(), order)
            unit = 2.0 ** exact.abs().clamp(min=torch.finfo(dtype).tiny).log2().floor() * torch.finfo(dtype).eps
            # The formula of Phi is right to 5e-5 of itself, which shows where f' is a small difference of two terms.
            room = unit + 1e-36 + order * 1e-4 * activations.functional.derivative(spec, x.detach().double(), 2).abs()
            within = (values.double() - exact).abs() <= room
            assert (within | (exact.abs() >= torch.finfo(dtype).max)).all()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("spec", [*COMPILED, *ROWS[:2]])
@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.full), torch.bfloat16], ids=["float32", "bfloat16"]
)
def test_values_and_gradients_are_torchs(spec, dtype):
    torch.manual_seed(0)
    plain = activations.create(spec).to(dtype)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.uniform_(-0.3, 0.3)
    fused = kernels.fuse(copy.deepcopy(plain))
    x = torch.randn(6, 4, 10, dtype=dtype)
    layouts = {"dense": x, "transposed": x.transpose(0, 2), "strided": x[::2], "expanded": x[:1].expand(5, 4, 10)}
    for name, source in layouts.items():
        leaf = source.detach().requires_grad_()
        for upstream in (torch.ones(()), torch.randn(())):
            results = []
            for module in (plain, fused):
                y = module(leaf)
                gradients = torch.autograd.grad(y, (leaf, *module.parameters()), upstream.to(dtype).expand_as(y))
                results.append((y, *gradients))
            tolerance = 1e-5 if dtype == torch.float32 else 2e-2
            torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance, msg=lambda text: f"{name}: {text}")  # noqa: B023


@pytest.mark.usefixtures("compiled")
def test_what_torch_differentiates_itself():
    """Second derivatives, many gradients at once, forward mode, vmap, a checkpoint, hooks on what is saved."""
    plain = activations.create("gelu").bfloat16()
    fused = kernels.fuse(copy.deepcopy(plain))
    x = torch.randn(3, 8).bfloat16().requires_grad_()

    def results(module):
        y = module(x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        many = torch.autograd.grad(module(x), x, torch.randn(2, 3, 8).bfloat16() * 0 + 1, is_grads_batched=True)[0]
        again = torch.autograd.grad(checkpoint(module, x, use_reentrant=False).sum(), x)[0]
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
            hooked = module(x)
        rows = torch.func.vmap(torch.func.grad(lambda row: module(row).sum()))(x.detach())
        with forward_ad.dual_level():
            dual = module(forward_ad.make_dual(x.detach(), torch.ones_like(x)))
            tangent = forward_ad.unpack_dual(dual).tangent
        twice = torch.autograd.grad(2 * module(x).sum() + module(x).relu_().sum(), x)[0]
        return second, many, again, torch.autograd.grad(hooked.sum(), x)[0], rows, tangent, twice

    torch.testing.assert_close(results(fused), results(plain), rtol=2e-2, atol=2e-2)


@pytest.mark.usefixtures("compiled")
def test_a_loss_on_the_side_of_training_is_differentiated_twice_by_torch_alone():
    plain = Net(lambda: nn.Sequential(nn.GELU(), activations.create("swish"))).bfloat16()
    fused, batch = kernels.fuse(copy.deepcopy(plain)), batch_of(16, dtype=torch.bfloat16)
    assert kernels.explain(fused.net[1][0], batch[0]).code == "formula"
    products = []
    for model in (plain, fused):
        with (
            LossProbe(model, [batch]) as probe,
            hessian_operator(probe.closures, probe.parameters, samples=probe.samples) as hessian,
        ):
            products.append(hessian(torch.ones(hessian.size, dtype=hessian.dtype)))
    torch.testing.assert_close(*products, rtol=0, atol=0)


@pytest.mark.usefixtures("compiled")
def test_a_function_and_a_class_of_ones_own():
    class Shifted(nn.Module):
        def __init__(self, by=1.0):
            super().__init__()
            self.by = by

        def forward(self, x):
            return torch.sin(x + self.by)

    registry = ActivationRegistry()
    registry.register("shifted")(Shifted)
    registry.register("damped")(lambda x, rate=0.5: x * torch.exp(-rate * x.square()))
    x = torch.randn(4, 6, requires_grad=True)
    for spec in ("shifted(by=0.3)", "damped", "damped(rate=2.0)"):
        plain, fused = registry.create(spec), kernels.fuse(registry.create(spec), registry)
        assert kernels.explain(fused, x).code == "compiled"
        results = [(m(x), *torch.autograd.grad(m(x).sum(), x)) for m in (plain, fused)]
        torch.testing.assert_close(*results)


@pytest.mark.usefixtures("compiled")
def test_what_cannot_be_compiled_is_left_to_torch_with_a_warning():
    class Prints(nn.Module):
        def forward(self, x):
            torch._dynamo.graph_break()
            return x.sin()

    registry = ActivationRegistry()
    registry.register("prints")(Prints)
    fused, x = kernels.fuse(Prints(), registry), torch.ones(3, requires_grad=True)
    with pytest.warns(kernels.LitGeluKernelWarning):
        y = fused(x)
    assert torch.equal(y, x.sin())
    assert kernels.explain(fused, x).code == "torch"
    assert torch.equal(fused(x), x.sin())


def test_small_tensors_and_other_dtypes_are_torchs_bit_for_bit():
    x = torch.randn(16, 8)
    for change in (lambda m: m, lambda m: m.double(), lambda m: m.bfloat16()):
        plain, fused = change(net()), kernels.fuse(change(net()))
        values = x.to(plain[0].weight.dtype)
        assert torch.equal(plain(values), fused(values))


@pytest.mark.usefixtures("compiled")
def test_explain_names_the_code_that_runs():
    x = torch.randn(8)
    assert kernels.explain(kernels.fuse(nn.GELU()), x.bfloat16()).code == "formula"
    assert kernels.explain(kernels.fuse(nn.GELU()), x).code == "torch"
    assert kernels.explain(kernels.fuse(activations.create("geglu")), x).code == "compiled"
    assert kernels.explain(kernels.fuse(nn.SiLU(inplace=True)), x.bfloat16()).code == "torch"
    assert kernels.explain(nn.GELU(), x.bfloat16()).code == "torch"
    assert kernels.fuse(nn.SiLU(inplace=True))(x) is x


@pytest.mark.usefixtures("compiled")
def test_inside_torch_compile_the_formula_takes_torchs_place():
    """Only it has the left tail."""
    x = torch.tensor([-9.0, -1.0, 2.0], dtype=torch.bfloat16, requires_grad=True)
    exact = activations.functional.gelu(x.detach().double()).bfloat16()
    torch.compiler.reset()
    y = torch.compile(kernels.fuse(nn.GELU()), backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(y, exact, rtol=0.008, atol=0)
    (slope,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(
        slope.double(), activations.functional.derivative("gelu", x.detach().double()), rtol=0.008, atol=0
    )


@pytest.mark.full
def test_by_inductor_above_the_threshold():
    fused = kernels.fuse(nn.GELU())
    x = torch.linspace(-12, 12, kernels.THRESHOLDS["cpu"]).bfloat16().requires_grad_()
    assert kernels.explain(fused, x).code == "formula"
    y = fused(x)
    torch.testing.assert_close(
        y.detach().double(), activations.functional.gelu(x.detach().double()), rtol=0.008, atol=1e-30
    )
    torch.autograd.grad(y.sum(), x)
