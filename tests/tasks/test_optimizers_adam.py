"""AdamEpsilonInsideRoot against its formula in float64, and against torch's Adam where the two must agree."""

import math

import pytest
import torch
from torch import nn

from lit_gelu.tasks import AdamEpsilonInsideRoot


def problem(dtype=torch.float64):
    """Parameters of several shapes and layouts, and a function of their gradients, some of them below 1e-4."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(7,), (3, 4), (5, 2, 3, 3), ()]
    params = [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in shapes]
    params[2].data = params[2].data.to(memory_format=torch.channels_last)
    sizes = [torch.logspace(-7, 0, param.numel(), dtype=dtype).reshape(param.shape) for param in params]

    def gradients():
        return [
            torch.randn(param.shape, generator=generator, dtype=dtype) * size
            for param, size in zip(params, sizes, strict=True)
        ]

    return params, gradients


def test_steps_against_the_formula_while_learning_rate_and_beta1_change():
    params, gradients = problem()
    reference = [param.detach().clone() for param in params]
    first, second = ([torch.zeros_like(param) for param in params] for _ in range(2))
    optimizer = AdamEpsilonInsideRoot(params, lr=1e-2)
    for step, (lr, beta1) in enumerate([(1e-2, 0.9), (1e-2, 0.9), (5e-3, 0.5), (1e-3, 0.5)], start=1):
        optimizer.param_groups[0].update(lr=lr, betas=(beta1, 0.999))
        for param, gradient, p, m, v in zip(params, gradients(), reference, first, second, strict=True):
            param.grad = gradient
            m.copy_(beta1 * m + (1 - beta1) * gradient)
            v.copy_(0.999 * v + 0.001 * gradient**2)
            p -= lr * (m / (1 - beta1**step)) / (v / (1 - 0.999**step) + 1e-8).sqrt()
        optimizer.step()
        for param, p in zip(params, reference, strict=True):
            torch.testing.assert_close(param.detach(), p, rtol=0, atol=1e-15)


@pytest.mark.parametrize("eps", [1e-60, 1e-8])
def test_torchs_adam_agrees_exactly_where_epsilon_does_nothing(eps):
    """Without epsilon the two are one; with 1e-8 they differ by up to the whole step where gradients are small."""
    (ours, our_gradients), (theirs, their_gradients) = problem(), problem()
    optimizers = AdamEpsilonInsideRoot(ours, lr=1e-2, eps=eps), torch.optim.Adam(theirs, lr=1e-2, eps=eps)
    for _ in range(3):
        for params, gradients in ((ours, our_gradients()), (theirs, their_gradients())):
            for param, gradient in zip(params, gradients, strict=True):
                param.grad = gradient
        for optimizer in optimizers:
            optimizer.step()
    largest = max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))
    assert largest < 1e-14 if eps == 1e-60 else largest > 5e-3


def test_a_saved_state_goes_on_as_if_it_had_not_been_interrupted(tmp_path):
    def run(steps, params, gradients, optimizer):
        for _ in range(steps):
            for param, gradient in zip(params, gradients(), strict=True):
                param.grad = gradient
            optimizer.step()

    whole, gradients = problem()
    run(5, whole, gradients, AdamEpsilonInsideRoot(whole))

    halves, gradients = problem()
    optimizer = AdamEpsilonInsideRoot(halves)
    optimizer.param_groups[0]["betas"] = (0.9, 0.999)
    run(2, halves, gradients, optimizer)
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    optimizer = AdamEpsilonInsideRoot(halves, lr=1.0)
    optimizer.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    run(3, halves, gradients, optimizer)
    for a, b in zip(halves, whole, strict=True):
        assert torch.equal(a, b)


def test_parameters_without_a_gradient_stay_and_count_their_own_steps():
    late, always = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = AdamEpsilonInsideRoot([{"params": [late, always]}, {"params": [nn.Parameter(torch.ones(1))]}], lr=0.1)
    for step in range(3):
        always.grad = torch.ones(1)
        late.grad = torch.ones(1) if step == 2 else None
        optimizer.step()
        assert (late.item() == 1) == (step < 2)
    # The first step of any parameter is lr * g / sqrt(g^2 + eps), whenever it comes.
    assert late.item() == pytest.approx(1 - 0.1 / math.sqrt(1 + 1e-8))
