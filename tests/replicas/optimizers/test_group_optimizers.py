"""The optimizers of a group against torch's own, a net each."""

import copy

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from lit_gelu.replicas.membership.stacks import Stacks
from lit_gelu.replicas.optimizers.group_optimizers import MemberOptimizers, StackedAdam, group_optimizer

RATES = (1e-1, 1e-2, 1e-3)


class Net(LightningModule):
    """Parameters of odd sizes and an optimizer."""

    def __init__(self, make):
        super().__init__()
        self.net, self.make = nn.Linear(7, 5), make
        self.late = nn.Parameter(torch.randn(3))

    def configure_optimizers(self):
        return self.make(self.parameters())


def made(kind, **options):
    return [lambda parameters, lr=lr: kind(parameters, lr=lr, **options) for lr in RATES]


def compare(makes, steps=4, kind=None, setting=None, values=()):
    """Make steps of a group, and of every net alone, with the same gradients; return the group's optimizer.

    Amid the steps a setting becomes each one's own value, as by a callback.
    """
    members = [Net(make) for make in makes]
    alone = [copy.deepcopy(member) for member in members]
    stacks = Stacks(members)
    group, own = group_optimizer(stacks), [net.configure_optimizers() for net in alone]
    assert kind is None or type(group) is kind
    for step in range(steps):
        gradients = {name: torch.randn_like(stack) for name, stack in stacks.parameters.items()}
        if step < 2:
            gradients["late"] = None  # as of a parameter that the loss does not depend on yet
        for r, value in enumerate(values if step == 1 else ()):
            group.own[r].param_groups[0][setting] = own[r].param_groups[0][setting] = value
        group.update(gradients)
        for r, (net, optimizer) in enumerate(zip(alone, own, strict=True)):
            for name, parameter in net.named_parameters():
                parameter.grad = None if gradients[name] is None else gradients[name][r].clone()
            optimizer.step()
    for r, (net, optimizer) in enumerate(zip(alone, own, strict=True)):
        for ours, stacked, theirs in zip(
            members[r].parameters(), stacks.slices(stacks.parameters)[r].values(), net.parameters(), strict=True
        ):
            assert torch.equal(ours, theirs)
            assert torch.equal(stacked, theirs)
        torch.testing.assert_close(group.member_state(r), optimizer.state_dict(), rtol=0, atol=0)
    return group


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1, "eps": 1e-4, "betas": (0.0, 0.99)}, {"maximize": True}])
def test_adam(kind, fused, options):
    compare(made(kind, fused=fused, **options), kind=StackedAdam)


def test_decays_of_their_own():
    adamw = [lambda p, decay=decay: torch.optim.AdamW(p, weight_decay=decay) for decay in (0.0, 0.1, 0.3)]
    compare(adamw, kind=StackedAdam)
    adam = [lambda p, decay=decay: torch.optim.Adam(p, weight_decay=decay) for decay in (0.0, 0.1, 0.3)]
    compare(adam, kind=MemberOptimizers)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("betas", [(0.9, 0.999), (0.5, 0.99), (0.0, 0.9)]),
        ("betas", [(0.5, 0.99)] * 3),
        ("eps", [1e-8, 1e-3, 0.1]),
        ("eps", [1e-3] * 3),
        ("maximize", [False, True, False]),
        ("maximize", [True] * 3),
        ("weight_decay", [0.01, 0.1, 0.3]),
        ("weight_decay", [0.3] * 3),
        ("decoupled_weight_decay", [False, True, True]),
    ],
)
def test_settings_that_change_amid_steps_are_each_members_own(kind, setting, values):
    compare(made(kind, weight_decay=0.01), kind=StackedAdam, setting=setting, values=values)


@pytest.mark.parametrize(
    "makes",
    [
        made(torch.optim.SGD, momentum=0.9, nesterov=True),
        made(torch.optim.RMSprop),
        made(torch.optim.Adam, amsgrad=True),
        made(torch.optim.Adam, foreach=True),
        [lambda p, beta=beta: torch.optim.Adam(p, betas=(beta, 0.999)) for beta in (0.0, 0.5, 0.9)],
        [lambda p, kind=kind: kind(p, lr=1e-3) for kind in (torch.optim.Adam, torch.optim.SGD)],
        made(lambda p, lr: torch.optim.Adam([{"params": [q], "lr": lr * k} for k, q in enumerate(p, 1)])),
    ],
)
def test_any_other_optimizer(makes):
    compare(makes, kind=MemberOptimizers)


def clamped(parameters, lr, register):
    """Return Adam with a hook that is called around each of its steps."""
    optimizer = torch.optim.Adam(parameters, lr=lr)

    def clamp(own, *_):
        for parameter in own.param_groups[0]["params"]:
            parameter.data.clamp_(-0.1, 0.1)

    getattr(optimizer, register)(clamp)
    return optimizer


@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_hooks_around_steps_are_called(register):
    group = compare(made(clamped, register=register), kind=MemberOptimizers)
    if register == "register_step_post_hook":
        assert all(parameter.abs().max() <= 0.1 for net in group.stacks.modules for parameter in net.parameters())


def test_hooks_around_steps_of_all_optimizers_are_called():
    called = []
    handle = register_optimizer_step_post_hook(lambda *_: called.append(1) or None)
    try:
        compare(made(torch.optim.Adam), steps=2, kind=MemberOptimizers)
    finally:
        handle.remove()
    assert len(called) == 2 * 2 * len(RATES)


def saved_amid_steps(group, stacks):
    """Make five steps; return the gradients of the last two, and the state and the weights before these."""
    gradients = [{name: torch.randn_like(s) for name, s in stacks.parameters.items()} for _ in range(5)]
    for gradient in gradients[:3]:
        group.update(gradient)
    saved, weights = group.state_dict(), copy.deepcopy(stacks.tree.state_dict())
    for gradient in gradients[3:]:
        group.update(gradient)
    return gradients[3:], saved, weights


@pytest.mark.parametrize(
    "makes", [made(torch.optim.Adam), made(torch.optim.Adam, fused=True), made(torch.optim.SGD, momentum=0.9)]
)
def test_a_saved_state_goes_on(makes):
    members = [Net(make) for make in makes]
    stacks = Stacks(members)
    group = group_optimizer(stacks)
    gradients, saved, weights = saved_amid_steps(group, stacks)
    wanted = copy.deepcopy(stacks.tree.state_dict())
    stacks.tree.load_state_dict(weights)
    other = group_optimizer(stacks)
    other.load_state_dict(saved)
    for gradient in gradients:
        other.update(gradient)
    torch.testing.assert_close(stacks.tree.state_dict(), wanted, rtol=0, atol=0)
    torch.testing.assert_close(other.state_dict(), group.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("is_moved", [False, True])
def test_an_optimizer_that_has_made_steps_goes_back(is_moved):
    """Views of stacks and moments are kept between steps: not of those whose place others have taken."""
    stacks = Stacks([Net(make) for make in [lambda p: torch.optim.Adam(p, lr=1e-2)] * 3])
    group = group_optimizer(stacks)
    gradients, saved, weights = saved_amid_steps(group, stacks)
    wanted, state = copy.deepcopy(stacks.tree.state_dict()), group.state_dict()
    if is_moved:
        for stack in stacks.parameters.values():
            stack.data = stack.data.clone()
        stacks.attach()
        before = copy.deepcopy(stacks.tree.state_dict())
        group.update(gradients[0])  # with the same moments
        assert all(not torch.equal(value, before[name]) for name, value in stacks.tree.state_dict().items())
    group.load_state_dict(saved)
    stacks.tree.load_state_dict(weights)
    for gradient in gradients:
        group.update(gradient)
    torch.testing.assert_close(stacks.tree.state_dict(), wanted, rtol=0, atol=0)
    torch.testing.assert_close(group.state_dict(), state, rtol=0, atol=0)


def test_a_members_state_holds_no_stack():
    group = compare(made(torch.optim.Adam))
    for entry in group.member_state(0)["state"].values():
        for tensor in entry.values():
            assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_a_changed_learning_rate_is_seen():
    group = compare(made(torch.optim.Adam))
    stack = group.stacks.parameters["late"]
    before = stack.detach().clone()
    group.own[1].param_groups[0]["lr"] = 0.0
    group.update({"late": torch.ones_like(stack)})
    assert (stack != before).any(dim=1).tolist() == [True, False, True]


@pytest.mark.parametrize("given", [lambda o: o, lambda o: [o], lambda o: {"optimizer": o}])
def test_one_optimizer_in_any_form(given):
    net = Net(lambda p: given(torch.optim.Adam(p)))
    assert type(group_optimizer(Stacks([net]))) is StackedAdam
