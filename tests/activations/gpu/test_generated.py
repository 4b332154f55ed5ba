"""Generated kernels on the CPU, by torch.compile's front end; one by Inductor's C++ code."""

import shutil
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from lit_gelu import kernels
from lit_gelu.activations import registry
from lit_gelu.activations.gpu import generated, routes
from lit_gelu.activations.gpu.autograd import LitGeluKernelWarning, fused
from lit_gelu.activations.gpu.generated import GeneratedKernel
from lit_gelu.activations.gpu.modules import ModuleKernel

pytestmark = pytest.mark.usefixtures("without_code")
UNITS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # unit roundoffs
ROWS = (
    "relu6",
    "leaky_relu(negative_slope=0.3)",
    "relu2",
    "selu",
    "celu(alpha=0.7)",
    "cauchy_linear(memory='recompute')",
    "laplace_linear",
    "hard_sigmoid",
    "softplus(beta=2.0)",
    "log_sigmoid",
    "clipped_gelu",
    "hard_mish",
    "mega_laplace",
    "sqrt_softplus",
    "xielu(learnable=False)",
)


def bent(x):
    return (torch.sqrt(x**2 + 1) - 1) / 2 + x


def all_values(dtype):
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    return x[x.isfinite()]


def compare(kernel, function, derivative, x, gradient, unit):
    """Compare a kernel with float64."""
    y, (by_x,) = kernel.forward(x), kernel.backward(gradient, x)
    wide = x.double()
    wanted, wanted_by_x = function(wide), gradient.double() * derivative(wide)
    assert y.shape == by_x.shape == x.shape
    assert y.dtype == by_x.dtype == x.dtype
    smallest = torch.finfo(x.dtype).tiny
    assert torch.all((y - wanted).abs() <= 1.01 * unit * wanted.abs() + 3e-7 + smallest)  # float32's cancellation
    size = gradient.double().abs()
    assert torch.all((by_x - wanted_by_x).abs() <= 1.01 * unit * wanted_by_x.abs() + 5e-7 * size + smallest)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("dtype", UNITS, ids=str)
@pytest.mark.parametrize("spec", ROWS)
def test_rows_of_the_registry(spec, dtype, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # the graph itself runs
    module = registry.create(spec)
    row, kernel = registry.entry_of(module), kernels.fuse(registry.create(spec)).kernel()
    arguments = row.live_arguments(module)
    x = all_values(dtype)
    x = x[x.abs() <= 200]  # squares stay finite
    kinks = [place for place, _ in registry.info(spec).kinks]
    x = x[torch.isin(x.double(), torch.tensor(kinks, dtype=torch.float64), invert=True)]
    assert isinstance(kernel, ModuleKernel)
    assert kernel.lacks(x) == ""

    def derivative(x):
        return row.derivative(x, 1, **arguments)

    gradient = torch.linspace(-2, 2, len(x)).to(dtype)
    compare(kernel, lambda x: row.function(x, **arguments), derivative, x, gradient, UNITS[dtype])


def test_every_elementwise_row_has_a_kernel_or_a_reason():
    names = {registry.entry_of(registry.create(spec)).name for spec in ROWS}
    left = {}
    for row in registry.entries():
        module = registry.create(row.name)
        if not registry.info(row.name).elementwise or registry.entry_of(module).name in names:
            continue
        kernels.fuse(module)
        if not hasattr(module, "kernel"):
            left[row.name] = kernels.explain(module, torch.zeros(1)).why
    assert sorted(left) == ["identity", "relu", "sigmoid", "tanh"]
    assert all("kernel='off'" in why for why in left.values())


def test_infinities_and_nan():
    x = torch.tensor([-torch.inf, torch.inf, torch.nan]).bfloat16()
    kernel = GeneratedKernel("softplus", F.softplus)
    y, (by_x,) = kernel.forward(x), kernel.backward(torch.ones(3).bfloat16(), x)
    assert y[:2].tolist() == [0.0, torch.inf]
    assert by_x[:2].tolist() == [0.0, 1.0]
    assert y[2].isnan()
    assert by_x[2].isnan()


def base():
    return torch.randn(6, 4, 8, 16).bfloat16()


LAYOUTS = {
    "contiguous": base,
    "channels last": lambda: base().to(memory_format=torch.channels_last),
    "transposed": lambda: base().transpose(0, 3),
    "with gaps": lambda: base()[:, :, ::2],
    "a slice": lambda: base()[1:, 1:],
    "unaligned": lambda: base().flatten()[3:],
    "expanded": lambda: torch.randn(6, 1).bfloat16().expand(6, 64),
    "one number": lambda: torch.randn(()).bfloat16(),
    "one row": lambda: torch.randn(64).bfloat16(),
    "odd": lambda: torch.randn(7, 3).bfloat16(),
    "empty": lambda: torch.randn(0, 3).bfloat16(),
}


def bent_slope(x):
    return x / (2 * torch.sqrt(x**2 + 1)) + 1


@pytest.mark.one_in(6)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_inputs(layout):
    x = LAYOUTS[layout]()
    compare(GeneratedKernel("bent", bent), bent, bent_slope, x, torch.randn(x.shape).bfloat16(), UNITS[x.dtype])


def test_layouts_of_gradients():
    x, kernel = torch.randn(40, 64).bfloat16(), GeneratedKernel("bent", bent)
    for gradient in (
        torch.randn(1).bfloat16().expand(40, 64),
        torch.randn(64).bfloat16().expand(40, 64),
        torch.randn(64, 40).bfloat16().t(),
        torch.randn(80, 64).bfloat16()[::2],
        torch.randn(40, 65).bfloat16()[:, 1:],
    ):
        compare(kernel, bent, bent_slope, x, gradient, UNITS[x.dtype])
    last = base().to(memory_format=torch.channels_last)
    compare(kernel, bent, bent_slope, last, torch.randn(6, 4, 8, 16).bfloat16(), UNITS[x.dtype])


def test_the_layout_of_the_input_is_kept():
    x = base().to(memory_format=torch.channels_last)
    y = GeneratedKernel("bent", bent).forward(x)
    assert y.stride() == x.stride()
    y.add_(1)  # no view, and no part of x
    assert not y._is_view()


def test_one_graph_serves_all_shapes(compilations):
    kernel = GeneratedKernel("bent", bent)
    for shape in ((64, 2), (3, 5, 64), (640,), (2, 2, 2, 64)):
        kernel.forward(torch.randn(shape).bfloat16())
        kernel.backward(torch.randn(shape).bfloat16(), torch.randn(shape).bfloat16())
    assert [len(arguments) for arguments in compilations] == [1, 2]


def test_the_same_operations_are_compiled_once(as_on_a_gpu, compilations):
    module, x = kernels.fuse(nn.Softplus()), torch.randn(64).bfloat16()
    y = module(x)
    assert torch.equal(module.eval()(x), y)
    same = GeneratedKernel("same", lambda x: F.softplus(x, module.beta, module.threshold))
    assert torch.equal(same.forward(x), y)
    assert len(compilations) == 1
    numbers = [torch.tensor(number) for number in (2.0, 3.0)]  # which no code shows
    for number in numbers:
        assert torch.equal(GeneratedKernel("times", lambda x, number=number: x * number).forward(x), x * number)
    assert len(compilations) == 3


def test_the_compiler_knows_the_sizes_to_be_open():
    traced = []

    def backend(graph, inputs):
        traced.append(graph)
        return graph

    generated.BACKEND = backend
    kernel = GeneratedKernel("bent", bent)
    for rows in (4, 9, 100):
        assert kernel.forward(torch.randn(rows, 64).bfloat16()).shape == (rows, 64)
    assert len(traced) == 1


def test_it_is_differentiated_as_torch_does(as_on_a_gpu):
    x = torch.randn(30, 7).bfloat16().requires_grad_()
    kernel = GeneratedKernel("bent", bent)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t, lambda t: t):
        y = fused(kernel, bent, x)
    assert "Kernel" in type(y.grad_fn).__name__
    assert kept == [x.data_ptr()]
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    wide = x.detach().double()
    assert torch.allclose(first.double(), bent_slope(wide), rtol=2.0**-6)
    assert torch.allclose(second.double(), 0.5 * (wide**2 + 1) ** -1.5, rtol=2.0**-4, atol=2.0**-8)
    _, pushed = torch.func.jvp(lambda x: fused(kernel, bent, x), (x.detach(),), (torch.ones_like(x),))
    assert torch.allclose(pushed.double(), bent_slope(wide), rtol=2.0**-6)


CHANNELS, LEARNED = torch.ones(5).bfloat16(), torch.ones((), requires_grad=True)
LEFT = {
    "softmax": (lambda x: x.softmax(-1), "softmax"),
    "mean": (lambda x: x - x.mean(), "mean"),
    "flip": (lambda x: x.flip(0), "flip"),
    "chance": (lambda x: x * torch.rand_like(x), "rand_like"),
    "dropout": (F.dropout, "takes more than one element"),
    "size": (lambda x: x * x.shape[-1], "sym_size"),
    "place": (lambda x: x * torch.arange(x.shape[-1]), "takes more than one element"),
    "half": (F.glu, "must be even"),
    "branch": (lambda x: x if x.sum() > 0 else -x, ""),
    "channels": (lambda x: x * CHANNELS, "a tensor that is not its argument"),
    "learned": (lambda x: x * LEARNED, "a tensor that is not its argument"),
    "in place": (lambda x: x.mul_(2), ""),
    "truth": (lambda x: x > 0, "torch.bool"),
    "double": (lambda x: x.double().exp(), "torch.float64"),
    "number": (lambda x: 3.0, "float"),
    "error": (lambda x: x.no_such_method(), "no_such_method"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_not_elementwise_is_left_to_torch(name, as_on_a_gpu):
    function, why = LEFT[name]
    kernel = GeneratedKernel(name, function)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = kernel.route(torch.randn(4, 6).bfloat16())
    assert found.code == "torch"
    assert found.why.startswith(f"{name!r} has no kernel: ")
    assert why in found.why
    assert not generated._codes


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.where(x > 0, x, x * torch.tensor(0.1)),
        lambda x: torch.maximum(x, torch.zeros_like(x)),
        lambda x: torch.maximum(x, torch.zeros(x.shape)).to(x.dtype),
        lambda x: x.masked_fill(x < 0, 0.5),
        lambda x: x * (x > 0),
        lambda x: torch.ones_like(x),
        lambda x: x,
    ],
    ids=["a number", "zeros like x", "zeros", "masked", "truth", "constant", "identity"],
)
def test_ways_to_write_an_elementwise_function(function):
    kernel, x = GeneratedKernel("own", function), torch.randn(9, 64).bfloat16()
    assert kernel.lacks(x) == ""
    y = kernel.forward(x)
    assert torch.equal(y, function(x))
    leaf = x.clone().requires_grad_()
    plain = function(leaf)
    slope = torch.autograd.grad(plain.sum(), leaf)[0] if plain.requires_grad else torch.zeros_like(x)
    assert torch.equal(kernel.backward(torch.ones_like(x), x)[0], slope)
    assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_what_is_set_for_a_thread_does_not_change_the_kernel(as_on_a_gpu):
    x, kernel = torch.randn(5, 64).bfloat16().requires_grad_(), GeneratedKernel("bent", bent)
    with torch.autocast("cpu", torch.bfloat16):
        y = checkpoint(lambda x: fused(kernel, bent, x), x, use_reentrant=False)  # which hooks saved tensors
    (by_x,) = torch.autograd.grad(y.sum(), x)
    wide = x.detach().double()
    assert kernel.route(x).code == "kernel"
    assert torch.allclose(y.double(), bent(wide), rtol=2.0**-8)
    assert torch.allclose(by_x.double(), bent_slope(wide), rtol=2.0**-8)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("spec", ["prelu(init=0.3)", "xielu(alpha_n=1.3)"])
@pytest.mark.parametrize("layout", ["contiguous", "channels last", "expanded", "odd", "empty"])
def test_parameters_of_one_number_are_learned(spec, layout, as_on_a_gpu):
    module, reference = kernels.fuse(registry.create(spec)), registry.create(spec).double()
    x = LAYOUTS[layout]().requires_grad_()
    module = module.bfloat16()
    for plain, parameter in zip(reference.parameters(), module.parameters(), strict=True):
        plain.data.copy_(parameter.data)
    y = module(x)
    assert "Kernel" in type(y.grad_fn).__name__
    gradient = torch.rand(x.shape).bfloat16()
    found = torch.autograd.grad(y, [x, *module.parameters()], gradient)
    wide = x.detach().double().requires_grad_()
    wanted_y = reference(wide)
    wanted = torch.autograd.grad(wanted_y, [wide, *reference.parameters()], gradient.double())
    assert torch.allclose(y.double(), wanted_y, rtol=2.0**-8, atol=1e-6)
    assert [by.shape for by in found] == [by.shape for by in wanted]
    assert [by.dtype for by in found] == [torch.bfloat16] * len(found)
    for by, wanted_by in zip(found, wanted, strict=True):
        assert torch.allclose(by.double(), wanted_by, rtol=2.0**-8, atol=1e-6)


def test_parameters_are_read_at_each_call(as_on_a_gpu, compilations):
    module, x = kernels.fuse(nn.PReLU(init=0.5)).bfloat16(), -torch.ones(64).bfloat16()
    for slope in (0.5, 0.25):
        module.weight.data.fill_(slope)
        assert torch.equal(module(x), slope * x)
    assert len(compilations) == 1


def test_a_parameter_of_each_channel_is_left_to_torch(as_on_a_gpu):
    module, x = kernels.fuse(nn.PReLU(5)).bfloat16(), torch.randn(3, 5).bfloat16().requires_grad_()
    assert "a parameter of more than one number" in kernels.explain(module, x).why
    y = module(x)
    assert torch.equal(y, F.prelu(x, module.weight))
    y.sum().backward()
    assert module.weight.grad.shape == (5,)


def test_learned_parameters_without_the_compiler(as_on_a_gpu):
    """Second derivatives, and first ones after a failure, go by torch's own and reach the parameters."""
    x, module, plain = torch.randn(64).bfloat16(), kernels.fuse(registry.create("xielu")), registry.create("xielu")
    module, plain = module.bfloat16(), plain.bfloat16()

    def second(module, y):
        tensors = [*module.parameters()]
        first = torch.autograd.grad(y.sum(), tensors, create_graph=True)
        return torch.stack(torch.autograd.grad(sum(first), tensors, retain_graph=True))

    assert torch.allclose(second(module, module(x)), second(plain, plain(x)), rtol=2.0**-6)
    generated.BACKEND = failing
    generated._runs.clear()
    generated._codes.clear()
    with pytest.warns(LitGeluKernelWarning):
        y = module(x)
    found = torch.autograd.grad(y.sum(), [*module.parameters()])
    wanted = torch.autograd.grad(plain(x).sum(), [*plain.parameters()])
    assert all(map(torch.equal, found, wanted))


def failing(*_):
    raise RuntimeError("no such compiler")


def test_a_failing_compiler_stops_nothing_and_warns_once(as_on_a_gpu):
    generated.BACKEND = failing
    x, kernel = torch.randn(64).bfloat16(), GeneratedKernel("bent", bent)
    with pytest.warns(LitGeluKernelWarning, match=r"(?s)'bent' failed.*no such compiler") as caught:
        assert torch.equal(fused(kernel, bent, x), bent(x))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(fused(kernel, bent, x), bent(x))
    assert "no such compiler" in kernel.route(x).why
    generated.BACKEND = "aot_eager"
    assert GeneratedKernel("softplus", F.softplus).route(x).code == "kernel"  # others go on
    assert not routes._failure


def test_a_compiler_that_fails_in_the_backward_pass_stops_nothing(as_on_a_gpu):
    x, kernel = torch.randn(64).bfloat16().requires_grad_(), GeneratedKernel("bent", bent)
    y = fused(kernel, bent, x)
    generated.BACKEND = failing
    with pytest.warns(LitGeluKernelWarning, match="no such compiler"):
        (by_x,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(by_x, torch.autograd.grad(bent(x).sum(), x)[0])


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_what_watches_torchs_operators_sees_them(as_on_a_gpu):
    with Watching():
        assert "dispatch mode" in GeneratedKernel("bent", bent).route(torch.zeros(3)).why


def test_within_a_compiled_model_it_is_the_plain_function(monkeypatch):
    monkeypatch.setattr(routes, "_compiled_route", lambda _: routes.Route("formula", ""))
    kernel, x = GeneratedKernel("bent", bent), torch.randn(5, 6).bfloat16()
    compiled = torch.compile(lambda x: fused(kernel, bent, x), backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(x), bent(x))
    assert not generated._codes


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor's code for CPUs needs g++")
def test_inductors_own_code(monkeypatch):
    monkeypatch.setattr(generated, "BACKEND", "inductor")
    kernel = GeneratedKernel("bent", bent)
    for shape in ((300, 64), (5, 8, 64)):
        x, gradient = torch.randn(shape).bfloat16(), torch.randn(shape).bfloat16()
        compare(kernel, bent, bent_slope, x, gradient, UNITS[x.dtype])
