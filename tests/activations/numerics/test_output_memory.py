"""``memory="output"``: what is kept, what it costs in accuracy, and where it is refused."""

import copy
import io

import pytest
import torch
from torch import nn

from lit_gelu import activations, kernels, surgery
from lit_gelu.activations import ActivationArgumentError, DerivativeFromOutputError

# Bits beside the output for each element.
BITS = {
    "gelu": 1,
    "gelu_tanh": 1,
    "gelu_sigmoid": 1,
    "silu": 1,
    "mish": 1,
    "hard_swish": 1,
    "elu": 0,
    "elu(alpha=0.5)": 0,
    "zero_identity_map": 0,
    "zero_identity_map(gate='logistic')": 0,
}
DETERMINISTIC = [spec for spec in BITS if "zero" not in spec]
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def saving(spec, memory="output"):
    name = activations.resolve(spec)
    return activations.create(name.name, **{**name.arguments, "memory": memory})


def sample(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul(2).to(dtype).requires_grad_()


def kept(function, x):
    """The output, and the bytes of each storage that is kept for the backward pass."""
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = function(x)
    return y, {address: size for address, (size, _) in storages.items()}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spec", BITS)
def test_the_output_is_what_is_kept(spec, dtype):
    x = sample(64, 32, dtype=dtype)
    y, storages = kept(saving(spec), x)
    assert storages.pop(y.untyped_storage().data_ptr()) == x.numel() * dtype.itemsize
    assert x.untyped_storage().data_ptr() not in storages
    assert sum(storages.values()) == x.numel() * BITS[spec] / 8


@pytest.mark.parametrize("spec", BITS)
def test_the_next_layer_keeps_the_same_storage(spec):
    def net(activation):
        return nn.Sequential(nn.Linear(32, 64), activation, nn.Linear(64, 8)).bfloat16()

    def between(model):  # what is kept for each element between the two layers
        _, storages = kept(model, torch.ones(128, 32, dtype=torch.bfloat16))
        inputs_and_weights = 128 * 32 * 2 + 64 * 8 * 2
        return (sum(storages.values()) - inputs_and_weights) / (128 * 64)

    torch.manual_seed(0)
    assert between(net(saving(spec))) == 2 + BITS[spec] / 8
    assert between(net(activations.create(spec))) >= 2 + (1 if "zero" in spec else 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spec", BITS)
def test_values_are_bit_for_bit_those_of_the_plain_module(spec, dtype):
    x = sample(33, 7, dtype=dtype)
    outputs = []
    for module in (saving(spec), activations.create(spec)):
        torch.manual_seed(0)
        outputs.append(module(x))
    assert torch.equal(*outputs)
    evaluated = saving(spec).eval()
    assert torch.equal(evaluated(x), activations.create(spec).eval()(x))
    with torch.no_grad():
        assert torch.equal(evaluated(x), activations.create(spec).eval()(x))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("spec", BITS)
def test_gradients_in_float64(spec, training):
    x = sample(40, 25, dtype=torch.float64)
    upstream = torch.randn(40, 25, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradients = []
    for module in (saving(spec).train(training), activations.create(spec).train(training)):
        torch.manual_seed(0)
        gradients.append(torch.autograd.grad(module(x), x, upstream)[0])
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=0)


def test_a_kept_zero_and_a_dropped_value_of_the_map():
    module = activations.create("zero_identity_map", memory="output")
    x = torch.tensor([0.0, -0.0, float("nan"), 40.0, -40.0, float("inf"), float("-inf")]).repeat(64, 1).requires_grad_()
    torch.manual_seed(0)
    y = module(x)
    (gradient,) = torch.autograd.grad(y.nan_to_num(0.0, 0.0, 0.0).sum(), x)
    assert ((gradient[:, :2].sum(0) - 32).abs() < 20).all()  # of 64, with probability 1/2
    assert set(gradient[:, :2].unique().tolist()) == {0.0, 1.0}
    assert torch.equal(
        module.rule().backward(torch.ones_like(y), y.detach())[:, 2:], torch.tensor([1.0, 1, 0, 1, 0]).expand(64, 5)
    )


def layouts():
    x = torch.randn(4, 6, 5, 8, generator=torch.Generator().manual_seed(2))
    return {
        "transposed": x.transpose(1, 3),
        "strided": x[:, ::2, :, 1::3],
        "expanded": x[:1].expand(3, 6, 5, 8),
        "channels_last": x.to(memory_format=torch.channels_last),
        "scalar": x[0, 0, 0, 0],
        "empty": x[:0],
    }


@pytest.mark.parametrize("layout", layouts())
@pytest.mark.parametrize("spec", ["gelu", "hard_swish", "elu", "zero_identity_map"])
def test_layouts_of_input_and_gradient(spec, layout):
    def gradients(module, reduce):
        torch.manual_seed(0)
        leaf = layouts()[layout].detach().requires_grad_()
        return torch.autograd.grad(reduce(module(leaf)), leaf)[0]

    weights = torch.randn(layouts()[layout].shape, generator=torch.Generator().manual_seed(3))
    for reduce in (torch.sum, lambda y: (y * weights).sum(), lambda y: (y.mT @ y if y.dim() > 1 else y).sum()):
        found, wanted = (gradients(module, reduce) for module in (saving(spec), activations.create(spec)))
        torch.testing.assert_close(found, wanted, atol=2e-3, rtol=1e-4)


def test_tensors_that_hooks_lay_out_anew():
    module, plain = saving("gelu"), activations.create("gelu")
    x = sample(6, 4).t().detach().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t.clone(memory_format=torch.contiguous_format), lambda t: t
    ):
        y = module(x)
    weights = torch.arange(24.0).view(4, 6)
    found, wanted = torch.autograd.grad(y, x, weights)[0], torch.autograd.grad(plain(x), x, weights)[0]
    torch.testing.assert_close(found, wanted, atol=5e-3, rtol=0)


def test_an_output_that_was_overwritten_is_noticed():
    x = sample(8)
    y = saving("gelu")(x)
    y.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def mlp(spec, seed, he):
    torch.manual_seed(seed)
    layers = []
    for inputs in (784, *[128] * 7):
        linear = nn.Linear(inputs, 128)
        if he:
            nn.init.kaiming_normal_(linear.weight)
        layers += [linear, activations.create(spec)]
    return nn.Sequential(*layers, nn.Linear(128, 10)).bfloat16()


def gradient_of(model, x, labels):
    loss = nn.functional.cross_entropy(model(x).double(), labels)
    return torch.cat([g.double().flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def relative_error(spec, he):
    """Of the gradient of an 8 x 128 MLP in bfloat16, beside float64 with the same weights: plain and saving."""
    errors = []
    name = activations.resolve(spec)
    for seed in range(4):
        for scale in (1.0, 4.0):
            plain = mlp(spec, seed, he)
            other = mlp(activations.ActivationSpec.of(name.name, **{**name.arguments, "memory": "output"}), seed, he)
            x = (scale * torch.rand(128, 784)).bfloat16()
            labels = torch.randint(10, (128,))
            exact = gradient_of(copy.deepcopy(plain).double(), x.double(), labels)
            errors.append([(gradient_of(m, x, labels) - exact).norm() / exact.norm() for m in (plain, other)])
    return torch.tensor(errors).square().mean(0).sqrt().tolist()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("spec", "he"),
    [(spec, False) for spec in DETERMINISTIC if "alpha" not in spec]
    + [(spec, True) for spec in ("gelu", "gelu_tanh", "gelu_sigmoid", "silu", "hard_swish", "elu")],
)
def test_the_gradient_of_a_net_is_as_good_as_bfloat16_allows(spec, he):
    own, found = relative_error(spec, he)
    assert 1e-3 < own < 0.1
    assert found <= 1.1 * own


def test_derivatives_that_an_output_does_not_tell_are_refused():
    x = sample(5)
    for spec in BITS:
        module = saving(spec)
        with pytest.raises(DerivativeFromOutputError, match="create_graph=True"):
            torch.autograd.grad(module(x).sum(), x, create_graph=True)
        with pytest.raises(DerivativeFromOutputError, match=r"torch\.func.*Leave memory out"):
            torch.func.grad(lambda x, module=module: module(x).sum())(x.detach())
        with (
            torch.autograd.forward_ad.dual_level(),
            pytest.raises(DerivativeFromOutputError, match="forward mode and reverse mode at once"),
        ):
            module(torch.autograd.forward_ad.make_dual(x, torch.ones(5)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spec", [*BITS, "dropout"])
def test_many_gradients_at_once(spec, dtype):
    """`torch.autograd.grad` with ``is_grads_batched=True``, as the vectorised Jacobian calls it."""
    x = sample(3, 4, dtype=dtype)
    module = activations.ActivationDropout("gelu(memory='output')", 0.3) if spec == "dropout" else saving(spec)
    y = module(x.T)
    rows = torch.eye(12, dtype=dtype).view(12, 4, 3)
    found = torch.autograd.grad(y, x, rows, is_grads_batched=True, retain_graph=True)[0]
    wanted = torch.stack([torch.autograd.grad(y, x, row, retain_graph=True)[0] for row in rows])
    by_vmap = torch.func.vmap(lambda row: torch.autograd.grad(y, x, row, retain_graph=True)[0])(rows)
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(by_vmap, wanted)


def test_what_keeps_nothing_is_torchs_own():
    """Forward mode alone, and transforms without a gradient."""
    x = sample(5).detach()
    module, plain = saving("silu"), activations.create("silu")
    found, wanted = (torch.func.jvp(m, (x,), (torch.ones(5),)) for m in (module, plain))
    assert torch.equal(found[1], wanted[1])
    assert torch.equal(torch.func.vmap(module)(x), plain(x))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("spec", DETERMINISTIC)
def test_a_compiler_sees_the_plain_function(spec):
    torch.compiler.reset()
    x = sample(4, 6)
    found, wanted = [], []
    for module, results in ((saving(spec), found), (activations.create(spec), wanted)):
        y = torch.compile(module, backend="aot_eager", fullgraph=True)(x)
        results += [y, torch.autograd.grad(y.sum(), x)[0]]
        results += [str(torch.export.export(module, (x.detach(),)).graph_module.code)]
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])
    assert found[2] == wanted[2]


@pytest.mark.parametrize("spec", BITS)
def test_the_mode_is_in_the_spec_and_not_in_the_function(spec):
    module = saving(spec)
    name = activations.spec_of(module)
    assert "memory='output'" in str(name)
    assert "memory='output'" in repr(module)
    assert repr(activations.create(str(name))) == repr(module)
    assert type(copy.deepcopy(module)) is type(module)
    assert str(activations.spec_of(activations.create(spec))) == str(activations.resolve(spec))
    x = torch.linspace(-2, 2, 8, dtype=torch.float64)
    derivative = activations.functional.derivative
    torch.testing.assert_close(derivative(module, x, 2), derivative(spec, x, 2))
    assert activations.gain(module) == activations.gain(spec)


def test_repr_of_torchs_modules():
    assert (
        repr(activations.create("gelu(approximate='tanh', memory='output')"))
        == "GELU(approximate='tanh', memory='output')"
    )
    assert repr(activations.create("silu(memory='output')")) == "SiLU(memory='output')"
    assert repr(activations.create("elu(alpha=2.0, memory='output')")) == "ELU(alpha=2.0, memory='output')"


def test_swap_and_checkpoints():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2))
    before = copy.deepcopy(model.state_dict())
    report = surgery.swap(model, {nn.GELU: "gelu(memory='output')"})
    assert repr(model[1]) == "GELU(approximate='none', memory='output')"
    assert [str(site.spec) for site in surgery.find_sites(model)] == ["gelu(memory='output')"]
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    model.load_state_dict(torch.load(file, weights_only=True))
    report.undo()
    assert type(model[1]) is nn.GELU
    assert model.state_dict().keys() == before.keys()
    surgery.swap(model, {nn.GELU: "mish(memory='output')"})
    surgery.swap(model, {"1": "silu"})
    assert type(model[1]) is nn.SiLU


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("gelu(memory='recompute')", "keeps its input alone already"),
        ("mish(memory='recompute')", "'mish'.*keeps its input alone already"),
        ("silu(inplace=True, memory='output')", "overwrites the input"),
        ("elu(alpha=-1.0, memory='output')", "two inputs have the same output"),
        ("hard_swish(memory='less')", "Use 'autograd', .* or 'output', which keeps the output"),
        ("swish(memory='output')", "or 'recompute', which keeps the input alone"),
        ("zero_identity_map(memory='recompute')", "a mask is drawn once"),
        ("zero_identity_map(memory='output', evaluation='mean')", "a mean of masks"),
    ],
)
def test_what_has_no_such_mode(spec, words):
    with pytest.raises(ActivationArgumentError, match=words):
        activations.create(spec)


def test_fuse_leaves_them_and_explain_asks_them():
    model = nn.Sequential(*(saving(spec) for spec in BITS))
    types = [type(module) for module in model]
    assert [type(module) for module in kernels.fuse(model)] == types
    found = {spec: kernels.explain(saving(spec), torch.zeros(3)).why for spec in BITS}
    assert found["gelu"] == found["gelu_sigmoid"] == "the tensor lies on cpu, and kernels are for CUDA"
    assert found["hard_swish"] == found["elu"] == "memory='output' of this function is torch's operations"
    module = activations.create("gelu_sigmoid", memory="output", kernels="off")
    assert kernels.explain(module, torch.zeros(3)).code == "torch"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_computed_by_torch(layout):
    """Against torch's function of each part."""
    parts = [sample(2, 4).detach(), sample(3, 4).detach()]
    nested = torch.nested.nested_tensor(parts, layout=layout, requires_grad=True)
    y = saving("gelu")(nested)
    y.to_padded_tensor(0.0).sum().backward()
    for part, value, gradient in zip(parts, y.unbind(), nested.grad.unbind(), strict=True):
        alone = part.clone().requires_grad_()
        expected = nn.functional.gelu(alone)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), alone)[0])
