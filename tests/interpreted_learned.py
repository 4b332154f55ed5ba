"""Kernels whose parameters are tensors through torch's autograd, in Triton's interpreter; see `interpreted_harness`.

python interpreted_learned.py OUT
"""

import torch
from interpreted_harness import HALF, half_normal, main, started
from triton.runtime.interpreter import interpreter_builder

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.gpu import operators, templates
from lit_gelu.activations.modules import GaussianGELU, Swish


def _trained(module):
    """Move learned parameters away from where they begin."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return module


def _in_float64(module, x, gradient):
    """Value and gradients by torch's operations in float64."""
    arguments = {"mu": module.initial_mu, "sigma": module.initial_sigma} if isinstance(module, GaussianGELU) else {}
    arguments = arguments or {"beta": module.initial_beta}
    wide = type(module)(
        **arguments,
        learnable=module.learnable,
        channels=module.spec_channels,
        channel_dim=module.channel_dim,
        kernels="off",
    )
    wide.load_state_dict(module.state_dict())
    for name, value in module.named_buffers():
        wide.get_buffer(name).copy_(value)
    wide.double()
    leaf = x.detach().double().requires_grad_()
    y = wide(leaf)
    y.backward(gradient.double())
    return y.detach(), leaf.grad, [parameter.grad for parameter in wide.parameters()]


def _compare(module, x, gradient, kernels):
    leaf = x.detach().requires_grad_()
    started.clear()
    module.zero_grad()
    y = module(leaf)
    y.backward(gradient)
    assert started == kernels, started
    wanted, by_x, by_parameters = _in_float64(module, x, gradient)
    assert torch.all((y - wanted).abs() <= 1.1 * HALF * wanted.abs() + 2.0**-24)
    assert torch.all((leaf.grad - by_x).abs() <= 1.1 * HALF * (by_x.abs() + gradient.abs()) + 2.0**-24)
    for parameter, by in zip(module.parameters(), by_parameters, strict=True):
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.shape == parameter.shape
        assert torch.all((parameter.grad - by).abs() <= 1e-4 * by.abs().max()), (parameter.grad, by)


FLAT = ["learned_forward", "learned_backward"]
LAST = ["learned_forward_last", "learned_backward_last"]


def one_number_each():
    x = half_normal(3, 5, 7, 11)
    _compare(_trained(GaussianGELU(0.3, 1.5, learnable=True)), x, half_normal(3, 5, 7, 11, seed=1), FLAT)
    _compare(_trained(Swish(0.8, learnable=True)), x.transpose(0, 3), half_normal(11, 5, 7, 3, seed=1), FLAT)
    _compare(_trained(Swish(learnable=True)), half_normal(9000), half_normal(1).expand(9000), FLAT)


def channels_of_images():
    x, gradient = half_normal(2, 3, 20, 30), half_normal(2, 3, 20, 30, seed=1)
    for module in (GaussianGELU(learnable=True, channels=3), Swish(learnable=True, channels=3)):
        _compare(_trained(module), x, gradient, FLAT)
        _compare(_trained(module), x.to(memory_format=torch.channels_last), gradient, LAST)
        turned = half_normal(2, 3, 30, 20).permute(2, 1, 0, 3)  # 600 elements of a channel side by side all the same
        _compare(_trained(module), turned, half_normal(30, 3, 2, 20, seed=1), FLAT)


def channels_of_the_last_dimension():
    for channels in (5, 64, 300):
        x, gradient = half_normal(70, channels), half_normal(70, channels, seed=1)
        for kind in (GaussianGELU, Swish):
            _compare(_trained(kind(learnable=True, channels=channels, channel_dim=-1)), x, gradient, LAST)
    many = half_normal(3000, 6)  # more than one program of rows
    _compare(_trained(Swish(learnable=True, channels=6)), many, half_normal(3000, 6, seed=1), LAST)


def fixed_numbers():
    x, gradient = half_normal(2, 3, 600), half_normal(2, 3, 600, seed=1)
    unary = ["unary_forward", "unary_backward"]
    _compare(GaussianGELU(0.5, 2.0), x, gradient, unary)
    _compare(GaussianGELU(0.0, 0.5), x, gradient, unary)
    _compare(GaussianGELU(), x, gradient, unary)
    _compare(Swish(1.702), x, gradient, unary)
    _compare(GaussianGELU(0.5, (1.0, 2.0, 0.3)), x, gradient, FLAT)
    _compare(Swish((1.0, 2.0, 0.3)), x, gradient, FLAT)


def extremes():
    x = torch.tensor([float("inf"), -float("inf"), float("nan"), 65504.0, -65504.0, 0.0, 1e-7]).half()
    for module in (GaussianGELU(0.3, 2.0, learnable=True), Swish(2.0, learnable=True)):
        y = module(x.requires_grad_())
        assert y[0] == float("inf")
        assert y[1] == 0
        assert y[2].isnan()
        assert torch.equal(y[3:6], torch.tensor([65504.0, 0.0, 0.0]).half())
    narrow = GaussianGELU(0.0, 1e-30, learnable=True)(half_normal(100))
    assert torch.equal(narrow, half_normal(100).relu())


def what_is_laid_out_otherwise_is_torchs():
    module = _trained(Swish(learnable=True, channels=3))
    x = half_normal(40, 3, 20)  # 20 elements of a channel side by side
    y = module(x)
    assert not started
    assert torch.equal(y, module.by_torch(x))


def a_wrong_number_of_channels_is_refused():
    for x in (half_normal(2, 4, 600), half_normal(600)):
        try:
            Swish(learnable=True, channels=3)(x)
        except ActivationArgumentError:
            assert not started
        else:
            raise AssertionError("it was to be refused")


def off_is_torchs():
    module = Swish(learnable=True, kernels="off")
    x = half_normal(9)
    assert torch.equal(module(x), Swish(learnable=True).by_torch(x))
    assert not started


def second_derivatives():
    module, x = _trained(GaussianGELU(learnable=True)), half_normal(50).requires_grad_()
    found = []
    for each in (module, module.double()):
        leaf = x.detach().to(next(each.parameters()).dtype if found else x.dtype).requires_grad_()
        each.kernels = "off" if found else "auto"
        (first,) = torch.autograd.grad(each(leaf).sum(), leaf, create_graph=True)
        found.append(torch.autograd.grad(first.sum(), [leaf, *each.parameters()]))
    for mine, wanted in zip(*found, strict=True):
        assert torch.allclose(mine.double(), wanted, atol=8 * HALF * max(1.0, float(wanted.abs().max())))


def only_the_input_and_parameters_are_kept():
    module, x, kept = Swish(learnable=True), half_normal(300).requires_grad_(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        module(x)
    assert sorted(size for size in kept if size > 1) == [300]


def elements_beyond_32_bits_are_none_of_the_first():
    # Program 2**22 would write there if it counted elements in 32 bits; these tensors have none for it.
    far, place = 2**22, interpreter_builder.set_grid_idx
    dims, inner = interpreter_builder.set_grid_dim, 1000
    x, g = half_normal(inner), half_normal(inner, seed=1)
    y, p, sums = torch.zeros(inner, dtype=torch.float16), torch.ones(1), torch.zeros(2 * (far + 1))
    given = {"ACT": "swish", "BLOCK": 1024}
    for shift in (far, 0):
        interpreter_builder.set_grid_idx = lambda first, *others, shift=shift: place(first + shift, *others)
        interpreter_builder.set_grid_dim = lambda _, *others: dims(far + 1, *others)
        try:
            for kernel, arguments in (("forward", (x, y, p, p)), ("backward", (g, x, y, p, p, sums))):
                blocks = {"BLOCKS": 1} if kernel == "backward" else {}
                getattr(templates, f"learned_{kernel}")[(1, 1, 1)](*arguments, inner, 1, **given, **blocks)
                assert bool(y.any()) == (shift == 0), kernel
                y.zero_()
        finally:
            interpreter_builder.set_grid_idx, interpreter_builder.set_grid_dim = place, dims


def torchs_checks_of_operators():
    p0, p1 = torch.tensor([0.1, 0.2, 0.3]), torch.tensor(1.5)
    for x in (half_normal(2, 3, 600), half_normal(2, 600, 3).transpose(1, 2)):
        torch.library.opcheck(operators.learned, (x, p0, p1, "gaussian_gelu", 1))
        torch.library.opcheck(operators.learned_backward, (x.clone(), x, p0, p1, "gaussian_gelu", 1))


CHECKS = (
    one_number_each,
    channels_of_images,
    channels_of_the_last_dimension,
    fixed_numbers,
    extremes,
    what_is_laid_out_otherwise_is_torchs,
    a_wrong_number_of_channels_is_refused,
    off_is_torchs,
    second_derivatives,
    only_the_input_and_parameters_are_kept,
    elements_beyond_32_bits_are_none_of_the_first,
    torchs_checks_of_operators,
)

if __name__ == "__main__":
    main(CHECKS)
