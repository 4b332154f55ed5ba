"""What is kept for the backward pass, counted by saved_tensors_hooks, and the mode that keeps the input alone."""

import io

import pytest
import torch
from torch.autograd import forward_ad

from lit_gelu import activations
from lit_gelu.activations import ActivationArgumentError

# The bytes of the modules' docstrings, for each element of the input: autograd's in float32 and bfloat16.
DOCUMENTED = {
    "gelu_sigmoid": (8, 4),
    "swish(beta=1.5)": (8, 4),
    "swish(learnable=True)": (8, 4),
    "swish(learnable=True, channels=1024)": (8, 4),
    "gaussian_gelu(sigma=0.5)": (4, 2),
    "gaussian_gelu(mu=0.5)": (12, 12),
    "gaussian_gelu(learnable=True)": (16, 16),
    "cauchy_linear": (21, 21),
    "laplace_linear": (32, 32),
    "reglu": (6, 3),
    "geglu": (6, 3),
    "geglu(approximate='sigmoid')": (8, 4),
    "swiglu": (6, 3),
    "swiglu(beta=2.0)": (8, 4),
}
ONE_TENSOR = (
    *("gelu", "gelu_tanh", "silu", "swish", "mish", "elu", "selu", "hard_swish", "softplus", "glu", "cdf_linear"),
)
ALL = [spec for spec in DOCUMENTED if "channels" not in spec]


def bytes_kept(module, dtype):
    """Bytes of the distinct storages that are kept, for each element of the input; parameters are not counted."""
    x = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module.to(dtype)(x)
    return sum(size for size, _ in kept.values() if size >= x.numel()) / x.numel()


def recomputed(spec):
    name = activations.resolve(spec)
    return activations.create(name.name, **{**name.arguments, "memory": "recompute"})


@pytest.mark.parametrize("spec", DOCUMENTED)
def test_the_documented_bytes(spec):
    sizes = tuple(bytes_kept(activations.create(spec), dtype) for dtype in (torch.float32, torch.bfloat16))
    assert sizes == DOCUMENTED[spec]
    assert tuple(bytes_kept(recomputed(spec), dtype) for dtype in (torch.float32, torch.bfloat16)) == (4, 2)


def test_torchs_functions_keep_one_tensor():
    assert {bytes_kept(activations.create(spec), torch.float32) for spec in ONE_TENSOR} == {4}
    assert bytes_kept(activations.create("zero_identity_map"), torch.float32) == 1  # the mask


@pytest.mark.parametrize("spec", DOCUMENTED)
def test_values_and_gradients_are_bit_for_bit_the_same(spec):
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        plain, saving = activations.create(spec).to(dtype), recomputed(spec).to(dtype)
        x = (3 * torch.randn(6, 1024, generator=torch.Generator().manual_seed(0))).to(dtype).requires_grad_()
        y = plain(x)
        upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        assert torch.equal(saving(x), y)
        expected = torch.autograd.grad(y, (x, *plain.parameters()), upstream)
        gradients = torch.autograd.grad(saving(x), (x, *saving.parameters()), upstream)
        assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))


# torch's own rules for forward mode are scripted when the first of them is needed.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")
@pytest.mark.parametrize("spec", ALL)
def test_higher_derivatives_forward_mode_and_vmap(spec):
    plain, saving = activations.create(spec).double(), recomputed(spec).double()
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert torch.autograd.gradgradcheck(saving, x.clone().requires_grad_())
    values = dict(saving.named_parameters())

    def total(module, x, values):
        return torch.func.functional_call(module, values, (x,)).square().sum()

    for transform in (torch.func.hessian, lambda f: torch.func.jacrev(torch.func.grad(f))):
        outputs, expected = (transform(lambda x, m=m: total(m, x, values))(x) for m in (saving, plain))
        torch.testing.assert_close(outputs, expected)
    outputs, expected = (torch.func.jvp(m, (x,), (x.cos(),))[1] for m in (saving, plain))
    torch.testing.assert_close(outputs, expected)
    rows = torch.func.vmap(torch.func.grad(lambda x: saving(x).sum()))(x)
    torch.testing.assert_close(rows, torch.func.grad(lambda x: plain(x).sum())(x))


@pytest.mark.parametrize("create_graph", [False, True])
def test_forward_mode_over_a_reverse_pass_and_in_itself(create_graph):
    plain, saving = activations.create("swish(beta=1.5)").double(), recomputed("swish(beta=1.5)").double()
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(2)).double()

    def curvature(module):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x.clone().requires_grad_(), torch.ones_like(x))
            gradient = torch.autograd.grad(module(dual).square().sum(), dual, create_graph=create_graph)[0]
            tangent = forward_ad.unpack_dual(gradient).tangent.detach()
        return tangent, torch.func.jacfwd(torch.func.jacfwd(module))(x[:1])

    torch.testing.assert_close(curvature(saving), curvature(plain), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "spec", ["swish(learnable=True)", "geglu", pytest.param("gaussian_gelu(learnable=True)", marks=pytest.mark.full)]
)
def test_gradients_of_a_compiled_module(spec):
    torch.compiler.reset()
    plain, saving = activations.create(spec), recomputed(spec)
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(3), requires_grad=True)
    y = torch.compile(saving, backend="aot_eager", fullgraph=True)(x)
    gradients = torch.autograd.grad(y.sum(), (x, *saving.parameters()))
    expected = torch.autograd.grad(plain(x).sum(), (x, *plain.parameters()))
    torch.testing.assert_close(gradients, expected)


@pytest.mark.parametrize("spec", ALL)
def test_the_mode_is_in_the_spec_and_not_in_the_function(spec):
    module = recomputed(spec)
    assert "memory='recompute'" in str(activations.spec_of(module))
    assert "memory='recompute'" in repr(module)
    assert str(activations.spec_of(activations.create(spec))) == str(activations.resolve(spec))
    x = torch.linspace(-2, 2, 8, dtype=torch.float64)
    derivative = activations.functional.derivative
    torch.testing.assert_close(derivative(module.double(), x, 0), derivative(spec, x, 0))


def test_what_keeps_one_tensor_already_has_no_mode():
    with pytest.raises(ActivationArgumentError):
        activations.create("gelu(memory='recompute')")
    with pytest.raises(ActivationArgumentError):
        activations.create("swish(memory='less')")


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of checks of sizes, which a trace holds fixed
@pytest.mark.parametrize("spec", ALL)
def test_a_traced_model_is_saved_and_computes_the_same(spec):
    """Against the module of the other mode, which torch.jit writes down by torch's own operators."""
    x = torch.randn(3, 4)
    traced = torch.jit.trace(recomputed(spec), x)
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    torch.testing.assert_close(torch.jit.load(file)(x), activations.create(spec)(x))
