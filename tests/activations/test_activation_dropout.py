"""An activation and dropout behind it, beside torch's two modules."""

import pytest
import torch
from torch import nn

from lit_gelu import activations, surgery
from lit_gelu.activations import ActivationArgumentError, ActivationDropout, DerivativeFromOutputError

VALLEYS = ("gelu", "gelu_tanh", "silu", "mish", "hard_swish")
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def pair(spec, p=0.3):
    name = activations.resolve(spec)
    saving = activations.ActivationSpec.of(name.name, **{**name.arguments, "memory": "output"})
    return ActivationDropout(saving, p), nn.Sequential(activations.create(spec), nn.Dropout(p))


def passes(module, x, upstream):
    """The output and the gradient, and the bytes that are kept for each element, in storages other than the input."""
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no address is used twice
        return tensor

    torch.manual_seed(0)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = module(x)
    return y, torch.autograd.grad(y, x, upstream)[0], sum(size for size, _ in kept.values()) / x.numel()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spec", VALLEYS)
def test_output_gradient_and_memory(spec, dtype):
    """The same mask is drawn, so that what was dropped is known from torch's own output."""
    saving, plain = pair(spec)
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(0)).mul(2).to(dtype)
    x[:, :8] = 0.0  # kept zeros have a derivative
    upstream = torch.ones_like(x)
    y, gradient, size = passes(saving, x.requires_grad_(), upstream)
    wanted_y, wanted, plain_size = passes(plain, x, upstream)
    assert torch.equal(y, wanted_y)
    assert size == dtype.itemsize + 1 / 8
    assert plain_size == 2 * dtype.itemsize  # the input and the mask, beside the output that the next layer keeps
    dropped = (wanted == 0) & (wanted_y == 0)
    assert 0.2 < dropped.float().mean() < 0.4
    assert (gradient[dropped] == 0).all()
    bound = {2: 0.04 if dtype == torch.bfloat16 else 0.015, 4: 5e-4, 8: 3e-6}[dtype.itemsize]
    smooth = (x - 3).abs() > 0.02  # at HardSwish's kink an output that is rounded again has inputs on both sides
    assert (gradient - wanted)[smooth].abs().max() <= bound


def test_evaluation_and_probabilities_at_the_ends():
    x = torch.randn(50, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for p in (0.0, 1.0):
        saving, plain = pair("gelu", p)
        assert torch.equal(saving(x), plain(x))
        assert torch.equal(saving.eval()(x), plain.eval()(x))
    with pytest.raises(ActivationArgumentError, match=r"p=1\.5 is not accepted"):
        ActivationDropout("gelu", p=1.5)


@pytest.mark.parametrize("spec", ["gelu", "relu", "elu(memory='output')", "gelu_sigmoid(memory='output')"])
def test_what_its_output_does_not_tell_is_composed(spec):
    x = torch.randn(30, generator=torch.Generator().manual_seed(0)).requires_grad_()
    found = passes(ActivationDropout(spec, 0.3), x, torch.ones(30))
    wanted = passes(nn.Sequential(activations.create(spec), nn.Dropout(0.3)), x, torch.ones(30))
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])


def test_sites_hooks_and_refusals():
    saving, _ = pair("gelu")
    x = torch.randn(30, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with pytest.raises(DerivativeFromOutputError):
        torch.autograd.grad(saving(x).sum(), x, create_graph=True)
    assert [site.name for site in surgery.find_sites(saving)] == ["activation"]
    seen = []
    handle = saving.activation.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    saving(x)
    handle.remove()
    assert seen == [x.shape]
    surgery.swap(saving, {"activation": "silu(memory='output')"})
    torch.manual_seed(0)
    y = saving(x)
    torch.manual_seed(0)
    assert torch.equal(y, nn.functional.dropout(nn.functional.silu(x), 0.3))
    assert repr(saving).startswith("ActivationDropout(\n  p=0.3\n  (activation): SiLU(memory='output')")


@pytest.mark.parametrize("p", ["0.5", None, True, -0.1, float("nan")])
def test_what_is_no_probability_is_refused(p):
    with pytest.raises(ActivationArgumentError, match=r"is not accepted\. Give a number from 0 to 1"):
        ActivationDropout("gelu", p=p)


@pytest.mark.parametrize("p", [0.1, 0.2, 0.35, 0.7, 0.999])
def test_the_outputs_are_those_of_torchs_dropout(p):
    saving, plain = pair("gelu", p)
    x = torch.randn(3000, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (y, *_), (wanted, *_) = (passes(module, x, torch.ones_like(x)) for module in (saving, plain))
    assert torch.equal(y, wanted)


def test_hooks_of_the_activation_s_backward_pass_and_of_all_modules_are_called():
    """A hook that puts 0 in the place of the gradient, so that what is expected needs no other module."""
    x = torch.ones(8, requires_grad=True)
    module = ActivationDropout("gelu(memory='output')", p=0.5)
    handle = module.activation.register_full_backward_pre_hook(lambda _, gradients: (gradients[0] * 0,))
    module(x).sum().backward()
    assert torch.equal(x.grad, torch.zeros(8))
    handle.remove()
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda called, *_: seen.append(called))
    try:
        module(x)
    finally:
        handle.remove()
    assert seen == [module.activation, module]
