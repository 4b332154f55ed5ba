"""The 0-I map's kernel through torch's autograd, in Triton's interpreter; see `interpreted_harness`.

python interpreted_zero_identity.py OUT
"""

import math

import torch
from interpreted_harness import half_normal, main, started
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lit_gelu.activations.gpu import operators, routes
from lit_gelu.activations.modules import ZeroIdentityMap

BOTH = ["zero_identity_forward", "zero_identity_backward"]
DRAWS = 2**15


def _phi(x):
    return 0.5 * math.erfc(-x / math.sqrt(2))


def each_is_kept_with_the_probability_of_the_normal_distribution():
    torch.manual_seed(0)
    for x in (-4.0, -2.5, -1.0, -0.25, 0.5, 1.0, 2.0, 3.5):
        y = ZeroIdentityMap()(torch.full((DRAWS,), x).half())
        assert set(y.tolist()) <= {x, 0.0}
        kept, p = int((y == x).sum()), _phi(x)
        assert abs(kept - DRAWS * p) <= 5 * math.sqrt(DRAWS * p * (1 - p)) + DRAWS * 2**-16, (x, kept)


def draws_are_independent():
    torch.manual_seed(1)
    # A number near 0 is a fair coin; elements eight apart come from the next call of the generator.
    coins = torch.stack([(ZeroIdentityMap()(torch.full((DRAWS,), 1e-3).half()) > 0).double() for _ in range(2)])
    coins = 2 * coins - 1
    limit = 5 / math.sqrt(DRAWS)
    for lag in (1, 2, 3, 4, 7, 8, 9, 16, 1024):
        assert (coins[0, :-lag] * coins[0, lag:]).mean().abs() < limit, lag
    assert (coins[0] * coins[1]).mean().abs() < limit
    assert coins.view(2, -1, 8).mean((0, 1)).abs().max() < 8 * limit


def seeds_are_torchs():
    x = half_normal(500)
    torch.manual_seed(2)
    first, second = ZeroIdentityMap()(x), ZeroIdentityMap()(x)
    torch.manual_seed(2)
    assert torch.equal(ZeroIdentityMap()(x), first)
    assert not torch.equal(first, second)


def gradients_are_the_mask():
    torch.manual_seed(3)
    for x in (half_normal(30, 40), half_normal(30, 40).t(), torch.zeros(900).half(), half_normal(30, 80)[:, ::2]):
        leaf = x.detach().requires_grad_()
        gradient = half_normal(*x.shape, seed=4)
        started.clear()
        y = ZeroIdentityMap()(leaf)
        (by_x,) = torch.autograd.grad(y, leaf, gradient, retain_graph=True)
        assert started == BOTH
        dropped = torch.signbit(y) & (y == 0)
        assert dropped.any()
        assert not dropped.all()
        assert torch.equal(y[~dropped], x[~dropped])
        assert torch.equal(by_x, torch.where(dropped, 0.0, gradient))
        (expanded,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
        assert torch.equal(expanded.detach(), torch.where(dropped, 0.0, 1.0).half())


def extremes():
    inf = float("inf")
    x = torch.tensor([inf, -inf, float("nan"), 65504.0, -65504.0]).half().requires_grad_()
    y = ZeroIdentityMap()(x)
    assert torch.equal(y[[0, 1, 3, 4]], torch.tensor([inf, 0.0, 65504.0, 0.0]).half())
    assert y[2].isnan()
    y.backward(torch.ones_like(y))
    assert x.grad.tolist() == [1.0, 0.0, 1.0, 1.0, 0.0]
    assert ZeroIdentityMap()(torch.empty(0, 3).half()).shape == (0, 3)


def evaluation_has_the_kernels_of_its_expectation():
    x = half_normal(200)
    for gate, function in (("normal", F.gelu), ("logistic", F.silu)):
        started.clear()
        y = ZeroIdentityMap(gate).eval()(x)
        assert started == ["unary_forward"]
        assert torch.allclose(y.double(), function(x.double()), rtol=2.0**-10, atol=2.0**-24)


def what_has_no_kernel_is_torchs():
    x = half_normal(200)
    ZeroIdentityMap("logistic")(x)
    ZeroIdentityMap(evaluation="mean", passes=3).eval()(x)
    ZeroIdentityMap(kernels="off")(x)
    ZeroIdentityMap(kernels="off").eval()(x)
    assert not started


def only_the_output_is_kept():
    x, kept = half_normal(300).requires_grad_(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t, lambda t: t):
        y = ZeroIdentityMap()(x)
    assert kept == [y.data_ptr()]


def torchs_checks_of_operators():
    x = half_normal(6, 70)
    seed = torch.tensor(5)
    for each in (x, x.t(), x[:, ::2]):
        torch.library.opcheck(operators.zero_identity, (each, seed))
        y = operators.zero_identity(each, seed)
        torch.library.opcheck(operators.zero_identity_backward, (each.clone(), y))


def a_checkpoint_is_no_failure():
    x = half_normal(300).requires_grad_()
    started.clear()
    y = checkpoint(ZeroIdentityMap(), x, use_reentrant=False)
    (by_x,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(by_x != 0, y != 0)
    assert started == [BOTH[0], BOTH[0], BOTH[1]]
    assert not routes._failure


CHECKS = (
    each_is_kept_with_the_probability_of_the_normal_distribution,
    draws_are_independent,
    seeds_are_torchs,
    gradients_are_the_mask,
    extremes,
    evaluation_has_the_kernels_of_its_expectation,
    what_has_no_kernel_is_torchs,
    only_the_output_is_kept,
    torchs_checks_of_operators,
    a_checkpoint_is_no_failure,
)

if __name__ == "__main__":
    main(CHECKS)
