"""Sharpness as the optimizer sees it, against dense eigen-decompositions and torch's optimizers themselves."""

import pytest
import torch
from torch import nn

from lit_gelu.curvature.loss import extreme_eigenvalues, hessian_operator
from lit_gelu.curvature.loss.parameters import ParameterLayout
from lit_gelu.curvature.loss.preconditioner import PreconditionedOperator, preconditioner_of
from lit_gelu.errors import UnsupportedRunError

RATE = 1e-2
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=RATE),
    "momentum": lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.8),
    "dampened, decayed": lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.8, dampening=0.3, weight_decay=0.1),
    "Nesterov": lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.8, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=RATE),
    "Adam, decayed": lambda p: torch.optim.Adam(p, lr=RATE, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=RATE, weight_decay=0.1),
    "AMSGrad": lambda p: torch.optim.AdamW(p, lr=RATE, amsgrad=True, eps=1e-3),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=RATE),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=RATE, momentum=0.5),
    "RMSprop, centered": lambda p: torch.optim.RMSprop(p, lr=RATE, centered=True),
}
NETS = {
    "gelu": lambda: nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2)),
    "tanh": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)),
    "norm": lambda: nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.SiLU(), nn.Linear(5, 2)),
}
START = 1e-30  # so small that its gradients change no second moment, however far steps diverge
SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq", "square_avg")


def trained(net, optimizer, steps=15):
    """Return a net in float64 after some steps, its optimizer and its loss."""
    torch.manual_seed(0)
    model = NETS[net]().double()
    x, y = torch.randn(32, 3).double(), torch.randn(32, 2).double()
    chosen = OPTIMIZERS[optimizer](model.parameters())

    def loss():
        return (model(x) - y).square().mean()

    for _ in range(steps):
        chosen.zero_grad()
        loss().backward()
        chosen.step()
    return dict(model.named_parameters()), chosen, loss


def expected_diagonal(optimizer, parameter):
    """Return what the next step divides by, from torch's documentation of each optimizer."""
    group, state = optimizer.param_groups[0], optimizer.state[parameter]
    if isinstance(optimizer, torch.optim.SGD):
        return torch.ones_like(parameter)
    if isinstance(optimizer, torch.optim.RMSprop):
        mean = state["grad_avg"] if group["centered"] else torch.zeros_like(parameter)
        return (state["square_avg"] - mean**2).sqrt() + group["eps"]
    beta1, beta2 = group["betas"]
    second = state["max_exp_avg_sq"] if group.get("amsgrad") else state["exp_avg_sq"]
    diagonal = (second / (1 - beta2 ** float(state["step"]))).sqrt() + group["eps"]
    return diagonal if isinstance(optimizer, torch.optim.NAdam) else diagonal * (1 - beta1 ** float(state["step"]))


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_is_the_largest_eigenvalue_of_the_dense_matrix(net, optimizer):
    parameters, chosen, loss = trained(net, optimizer)
    preconditioner = preconditioner_of([chosen], ParameterLayout(parameters))
    tensors = [*parameters.values()]
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss(), tensors, create_graph=True)])
    rows = [torch.autograd.grad(each, tensors, retain_graph=True, allow_unused=True) for each in gradient]
    dense = torch.stack([
        torch.cat([(torch.zeros_like(t) if g is None else g).flatten() for g, t in zip(row, tensors, strict=True)])
        for row in rows
    ])
    group = chosen.param_groups[0]
    if not isinstance(chosen, torch.optim.AdamW):
        dense = dense + group["weight_decay"] * torch.eye(len(dense)).double()
    root = torch.cat([expected_diagonal(chosen, t).flatten() for t in tensors]).rsqrt()
    expected = torch.linalg.eigvalsh(root[:, None] * (dense + dense.T) / 2 * root)[-1]
    with hessian_operator(loss, parameters) as hessian:
        (pair,) = extreme_eigenvalues(PreconditionedOperator(hessian, preconditioner), steps=hessian.size)
    assert pair.value == pytest.approx(float(expected), rel=1e-6)


def diverges(optimizer, share):
    """Return whether torch's optimizer diverges on a parabola with a share of the limit, its second moment held."""
    weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
    chosen = OPTIMIZERS[optimizer]([weight])
    weight.grad = torch.ones_like(weight)
    chosen.step()
    state = chosen.state[weight]
    # So late that corrections of the beginning are over, and NAdam's momentum is what it becomes; at rest.
    held = {name: state[name].clone() for name in SECOND_MOMENTS if name in state}
    held |= {name: torch.zeros_like(state[name]) for name in ("mu_product", "grad_avg") if name in state}
    held |= {"step": torch.full_like(state["step"], 1e6)} if "step" in state else {}
    for name in ("exp_avg", "momentum_buffer", *held):
        if state.get(name) is not None:
            state[name].copy_(held.get(name, torch.zeros_like(state[name])))
    preconditioner = preconditioner_of([chosen], ParameterLayout({"weight": weight}))
    curvature = share * preconditioner.limit / float(preconditioner.inverse_root**2) - float(preconditioner.decay)
    with torch.no_grad():
        weight.fill_(START)
    for _ in range(4000):
        weight.grad = curvature * weight.detach()
        chosen.step()
        for name, value in held.items():
            state[name].copy_(value)
    return float(weight.detach().abs()) > START


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "RMSprop, centered"])
def test_steps_of_torch_diverge_above_the_limit_and_not_below(optimizer):
    assert not diverges(optimizer, 0.98)
    assert diverges(optimizer, 1.02)


def test_groups_with_rates_of_their_own_are_a_part_of_the_preconditioner():
    first, second = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    chosen = torch.optim.SGD([{"params": [first], "lr": 0.1}, {"params": [second], "lr": 0.05}], lr=1.0)
    layout = ParameterLayout({"first": first, "second": second})
    preconditioner = preconditioner_of([chosen], layout)
    assert preconditioner.limit == pytest.approx(20.0)
    torch.testing.assert_close(preconditioner.inverse_root**2, torch.tensor([1.0, 0.5]))


def test_what_has_no_known_limit():
    weight, other = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    layout = ParameterLayout({"weight": weight, "other": other})
    adagrad = torch.optim.Adagrad([weight, other], lr=RATE)
    partial = torch.optim.SGD([weight], lr=RATE)
    groups = [{"params": [weight], "momentum": 0.9}, {"params": [other]}]
    for optimizers in ([adagrad], [partial], [torch.optim.SGD(groups, lr=RATE)]):
        with pytest.raises(UnsupportedRunError, match="preconditioned_sharpness"):
            preconditioner_of(optimizers, layout)


def test_there_is_none_before_the_first_step():
    weight = nn.Parameter(torch.ones(1))
    assert preconditioner_of([torch.optim.Adam([weight])], ParameterLayout({"weight": weight})) is None


def test_batch_sharpness_is_the_mean_over_batches_of_their_own():
    torch.manual_seed(1)
    net = NETS["gelu"]().double()
    batches = [(torch.randn(n, 3).double(), torch.randn(n, 2).double()) for n in (8, 8, 16)]
    parameters = dict(net.named_parameters())

    def loss_of(x, y):
        return lambda: (net(x) - y).square().mean()

    expected = []
    for x, y in batches:
        with hessian_operator(loss_of(x, y), parameters) as alone:
            g = alone.gradient
            expected.append(g @ alone(g) / (g @ g))
    with hessian_operator([loss_of(*batch) for batch in batches], parameters, samples=[8, 8, 16]) as hessian:
        torch.testing.assert_close(hessian.along_gradients(), torch.stack(expected), rtol=1e-10, atol=0)
