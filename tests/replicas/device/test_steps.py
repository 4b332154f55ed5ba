"""The step that a GPU repeats: run on a CPU it is the runs alone; what captures it is called as CUDA wants it."""

import contextlib
import functools
from types import SimpleNamespace

import pytest
import torch
from pretended_cuda import Pretended
from replica_runs import Run, Samples, State, check_equal, runs_of, trained_alone
from small_task import quiet_trainer

from lit_gelu.replicas import (
    BatchOrder,
    EagerExecutor,
    NotReplicableError,
    ReplicaArgumentError,
    ReplicaDataModule,
    ReplicaGroup,
    build_members,
)
from lit_gelu.replicas.device.captured_steps import captured
from lit_gelu.replicas.device.repeated_steps import WARM_UP, RepeatedStep
from lit_gelu.replicas.refused_options import check_trainer
from lit_gelu.sandbox import evaluation_mode
from lit_gelu.tasks import MNISTClassifier, TweetTagger

CELLS = [
    {"activation": "gelu_tanh", "keep": 0.5},
    {"activation": "elu", "learning_rate": 1e-4, "keep": 0.8},
    {"activation": "relu", "keep": 1.0},
    {"activation": "swish(beta=1.5, learnable=True)", "keep": 0.5},
]
SEEDS = [0, 1, 0, 2]
BUILD = functools.partial(TweetTagger, vector_size=8, noise="keys")
BATCH = 8


@pytest.fixture(scope="module")
def samples():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(83, 24, generator=generator)
    return inputs, torch.randint(25, (len(inputs),), generator=generator)


def group(cells=CELLS, kind="device", build=BUILD):
    """Return an executor, its optimizer made."""
    executor = EagerExecutor(build_members(build, cells, SEEDS[: len(cells)]), kind)
    executor.configure_optimizers()
    return executor


def rows_of(executor, samples, epoch=0):
    """Return the samples of an epoch."""
    return BatchOrder(len(samples[0]), BATCH, "seed").epoch(executor.streams.generators, epoch)


def state_of(executor, replica):
    """Return a member as `trained_alone` keeps runs."""
    member = executor.stacks.modules[replica]
    weights = {name: tensor.clone() for name, tensor in member.state_dict().items()}
    return State(weights, executor.optimizer.member_state(replica), executor.streams.states()[replica])


@pytest.mark.parametrize(("cells", "is_fused"), [(CELLS, False), (CELLS[:3], True), ([CELLS[2], *CELLS[:3]], True)])
def test_the_step_is_that_of_the_runs_alone(samples, cells, is_fused):
    alone = [
        trained_alone(BUILD, cell, seed, samples, BATCH, (4, 10, 23), "seed")
        for cell, seed in zip(cells, SEEDS, strict=False)
    ]
    executor, runs = group(cells), [Run() for _ in cells]
    assert (executor.device_steps.fused is not None) == is_fused
    epochs = [rows_of(executor, samples, epoch) for epoch in range(3)]
    made = 0
    for rows in (epochs[0][:4], epochs[0][4:], epochs[1], epochs[2][:3]):
        losses = executor.steps(*samples, rows)["train_loss"]
        made += len(rows)
        assert losses.shape == (len(rows), len(cells))
        for replica, run in enumerate(runs):
            run.losses += losses[:, replica].tolist()
            if made in {4, 10, 23}:
                run.states[made] = state_of(executor, replica)
    check_equal(alone, runs, exact=False)
    for one, other in zip(alone, runs, strict=True):  # counts and seeds are no matter of rounding
        for name, tensor in one.states[23].weights.items():
            assert tensor.is_floating_point() or torch.equal(tensor, other.states[23].weights[name])


def test_an_inactive_replica_stays_as_it_is(samples):
    executor, without = group(), group([CELLS[0], *CELLS[2:]])
    rows = rows_of(executor, samples)
    executor.steps(*samples, rows[:3])
    executor.active[1] = False
    before = state_of(executor, 1)
    executor.steps(*samples, rows[3:])
    after = state_of(executor, 1)
    assert all(torch.equal(tensor, after.weights[name]) for name, tensor in before.weights.items())
    assert after.optimizer["state"][0]["step"] == 3
    assert torch.equal(before.optimizer["state"][0]["exp_avg"], after.optimizer["state"][0]["exp_avg"])
    others = torch.stack([rows[:, replica] for replica in (0, 2, 3)], dim=1)
    without.streams.set_states([executor.streams.states()[replica] for replica in (0, 2, 3)])
    without.steps(*samples, others)
    for mine, its in zip((0, 2), (0, 1), strict=True):
        weights = state_of(without, its).weights
        assert all(torch.equal(t, weights[name]) for name, t in state_of(executor, mine).weights.items() if mine == 0)


def test_a_replica_that_never_made_a_step_has_no_state(samples):
    executor, other = group(), group()
    rows = rows_of(executor, samples)
    executor.active[1] = other.active[1] = False
    executor.steps(*samples, rows[:4])
    assert executor.optimizer.member_state(1)["state"] == {}
    other.stacks.tree.load_state_dict(executor.stacks.tree.state_dict())
    other.optimizer.load_state_dict(executor.optimizer.state_dict())
    other.streams.set_states(executor.streams.states())
    for one in (executor, other):
        one.steps(*samples, rows[4:])
    for replica in range(len(CELLS)):
        mine, its = (Run({10: state_of(one, replica)}) for one in (executor, other))
        check_equal([mine], [its])


def test_it_goes_on_from_a_state(samples):
    executor, other = group(), group()
    rows = rows_of(executor, samples)
    executor.steps(*samples, rows[:4])
    other.steps(*samples, rows[4:6])  # to be forgotten
    other.stacks.tree.load_state_dict(executor.stacks.tree.state_dict())
    other.optimizer.load_state_dict(executor.optimizer.state_dict())
    for one in (executor, other):
        one.steps(*samples, rows[4:])
    for replica in range(len(CELLS)):
        mine, its = state_of(executor, replica), state_of(other, replica)
        check_equal([Run({1: mine}, [0.0])], [Run({1: its}, [0.0])])


def test_learning_rates_are_read_at_every_batch_of_the_trainer(samples):
    executor = group()
    rows = rows_of(executor, samples)
    executor.steps(*samples, rows[:2])
    before = executor.stacks.tree.get_parameter("output.weight").clone()
    for own in executor.optimizer.own[1:]:
        own.param_groups[0]["lr"] = 0.0
    executor.steps(*samples, rows[2:])
    moved = (executor.stacks.tree.get_parameter("output.weight") != before).flatten(1).any(1)
    assert moved.tolist() == [True, False, False, False]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("betas", (0.5, 0.9), r"betas has become .*\(0\.5, 0\.9\).* keep to \(0\.9, 0\.999\)"),
        ("eps", 1e-3, r"eps has become 1e-08, 1e-08, 0\.001, 1e-08 .* keep to 1e-08"),
        ("maximize", True, "maximize has become False, False, True, False"),
        ("weight_decay", 0.1, r"weight_decay has become 0, 0, 0\.1, 0"),
    ],
)
def test_other_settings_that_change_are_refused_before_a_step(samples, name, value, said):
    executor = group()
    rows = rows_of(executor, samples)
    executor.steps(*samples, rows[:2])
    before = executor.stacks.tree.get_parameter("output.weight").clone()
    executor.optimizer.own[2].param_groups[0][name] = value
    with pytest.raises(NotReplicableError, match=rf'{said}.*executor="stacked"'):
        executor.steps(*samples, rows[2:])
    assert torch.equal(executor.stacks.tree.get_parameter("output.weight"), before)
    executor.active[2] = False
    executor.steps(*samples, rows[2:])


def test_a_capture_leaves_everything_as_it_was(samples):
    executor = group()
    rows = rows_of(executor, samples)
    executor.steps(*samples, rows[:4])
    wanted = group()
    wanted.steps(*samples, rows[:4])
    steps = executor.device_steps
    step = RepeatedStep(executor.forward, executor.optimizer, executor.logs_noise_free, *samples, tuple(rows.shape))
    step.start(rows[4:])
    cuda = Pretended(step)
    replay = captured(step, cuda)
    assert cuda.calls == ["side waits", "side", "main waits", "capture"]
    assert steps is executor.device_steps
    losses = torch.stack([wanted.steps(*samples, row[None])["train_loss"][0] for row in rows[4:]])
    replay(len(rows) - 4)
    assert cuda.calls[4:] == ["replay 1"] * (len(rows) - 4)
    assert torch.equal(step.losses[: len(losses)], losses)
    for replica in range(len(CELLS)):
        check_equal([Run({1: state_of(wanted, replica)}, [0.0])], [Run({1: state_of(executor, replica)}, [0.0])])
    assert len(step.rows) >= WARM_UP


def test_a_group_that_was_on_a_gpu_is_one_for_a_cpu_again():
    executor = EagerExecutor(build_members(MNISTClassifier, [{"noise": "keys"}] * 2), "auto")
    executor.kind, executor.device_steps = "graph", object()  # as a fit on CUDA leaves them
    executor.configure_optimizers()
    assert executor.kind == "written"
    assert executor.device_steps is None


def test_a_graph_is_captured_anew_where_tensors_have_moved(samples, monkeypatch):
    captures = []
    monkeypatch.setattr("lit_gelu.replicas.device.steps.captured", lambda step: captures.append(step) or step.several)
    executor = group()
    executor.device_steps.capture = True
    rows = rows_of(executor, samples)
    executor.steps(*samples, rows[:4])
    executor.steps(*samples, rows[4:6])  # fewer: the same graph
    assert len(captures) == 1
    executor.optimizer.load_state_dict(executor.optimizer.state_dict())
    executor.steps(*samples, rows[6:8])
    assert len(captures) == 2
    executor.steps(*samples, rows)  # more, for which there is room
    assert len(captures) == 2
    rows = rows.repeat(7, 1, 1)
    executor.steps(*samples, rows)  # more than there is room for
    executor.steps(samples[0].clone(), samples[1], rows)
    assert len(captures) == 4


@pytest.mark.parametrize(
    ("build", "cells", "said"),
    [
        (TweetTagger, [{}], r"hidden\.0\.dropout \(Dropout\) draws.*noise=\"keys\""),
        (BUILD, [{"activation": "zero_identity_map"}], r"hidden\.0\.activation.*no stochastic activation"),
        (torch.nn.Linear, [{"in_features": 1, "out_features": 1}], "does not know the forward pass of Linear"),
    ],
)
def test_members_that_a_device_cannot_have_are_refused(build, cells, said):
    with pytest.raises(ReplicaArgumentError, match=said):
        EagerExecutor(build_members(build, cells), "device")


def test_measurements_are_those_of_the_members(samples):
    executor = group(CELLS[:3])
    executor.steps(*samples, rows_of(executor, samples)[:3])
    found = executor.means(*samples, samples_at_once=40)
    for replica, module in enumerate(executor.stacks.modules):
        with torch.no_grad(), evaluation_mode(module):
            values = module.sample_values(*samples)
        for name, value in values.items():
            torch.testing.assert_close(found[name][replica], value.double().mean(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_measurements_beside_steps_are_of_the_members_as_they_were(samples, device):
    executor = EagerExecutor(build_members(BUILD, CELLS[:3], SEEDS[:3]), "graph" if device == "cuda" else "device")
    executor.stacks.tree.to(device)
    executor.configure_optimizers()
    rows = rows_of(executor, samples)
    executor.steps(*samples, rows[:3])
    expected = executor.means(*samples)
    with executor.measuring():
        if device == "cpu":  # on a GPU they may come between its kernels anyway
            executor.steps(*samples, rows[3:6])
        found = executor.means(*samples)
    executor.steps(*samples, rows[6:9])
    if device == "cuda":
        torch.cuda.synchronize()
    for name, values in expected.items():
        assert torch.equal(found[name], values), name
        assert not torch.equal(executor.means(*samples)["loss"], expected["loss"])


def test_outputs_of_some_are_those_of_the_members(samples):
    executor = group(CELLS[:3])
    executor.steps(*samples, rows_of(executor, samples)[:3])
    found = executor.outputs([2, 0])(samples[0])
    for own, replica in zip(found, (2, 0), strict=True):
        module = executor.stacks.modules[replica]
        with torch.no_grad(), evaluation_mode(module):
            torch.testing.assert_close(own, module(samples[0]), rtol=1e-5, atol=1e-6)
    assert group().outputs([0]) is None  # a learnable activation is not known to the kernels


def test_no_noise_needs_no_keys():
    members = build_members(functools.partial(MNISTClassifier, hidden_layers=1), [{"keep": 1.0}])
    assert EagerExecutor(members, "device").kind == "device"


@pytest.mark.parametrize(
    ("build", "executor", "fits"),
    [(BUILD, "auto", True), (BUILD, "device", True), (BUILD, "stacked", False), (TweetTagger, "auto", False)],
)
def test_trainers_on_a_gpu(build, executor, fits):
    trainer = SimpleNamespace(
        gradient_clip_val=None,
        accumulate_grad_batches=1,
        limit_train_batches=1.0,
        fast_dev_run=False,
        overfit_batches=0.0,
        precision="32-true",
        world_size=1,
        lightning_module=None,
        val_check_interval=1.0,
        _val_check_time_interval=None,
        check_val_every_n_epoch=1,
        strategy=SimpleNamespace(root_device=torch.device("cuda")),
        state=SimpleNamespace(fn=None),
    )
    group = ReplicaGroup.of(build, [{}], executor=executor)
    with contextlib.nullcontext() if fits else pytest.raises(NotReplicableError, match='noise="keys"'):
        check_trainer(trainer, group.executor.refused_on_a_gpu)


@pytest.mark.parametrize("steps_per_batch", [1, 4])
def test_a_group_in_a_trainer(samples, steps_per_batch):
    alone = [
        trained_alone(BUILD, cell, seed, samples, BATCH, (13,), "seed")
        for cell, seed in zip(CELLS[:2], SEEDS, strict=False)
    ]
    group = ReplicaGroup.of(BUILD, CELLS[:2], SEEDS[:2], steps_per_batch=steps_per_batch, executor="device")
    trainer = quiet_trainer(max_steps=13, max_epochs=-1)
    trainer.fit(group, datamodule=ReplicaDataModule(Samples(samples, BATCH, "seed")))
    together = runs_of(group, trainer)
    for one, other in zip(alone, together, strict=True):
        other.losses = one.losses
    check_equal(alone, together, exact=False)


def test_a_graph_needs_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ReplicaArgumentError, match=r'torch sees no device.*accelerator="cpu"'):
        group(kind="graph")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ReplicaArgumentError, match=r'on a CPU. Give accelerator="cuda"'):
        group(kind="graph")


@pytest.mark.gpu
@pytest.mark.parametrize("cells", [CELLS, CELLS[:3]], ids=["layer by layer", "fused"])
def test_a_graph_is_the_step_and_near_the_run_alone(samples, cells):
    found = []
    for kind in ("graph", "device"):
        executor = EagerExecutor(build_members(BUILD, cells, SEEDS[: len(cells)]), kind)
        executor.stacks.tree.cuda()
        executor.configure_optimizers()
        rows = torch.cat([rows_of(executor, samples, epoch) for epoch in (0, 1)])
        parts = rows[:4], rows[4:]  # by graphs of one step, and of several
        losses = [executor.steps(*samples, part)["train_loss"] for part in parts]
        found.append((torch.cat(losses), [stack.detach().cpu() for stack in executor.stacks.parameters.values()]))
    assert torch.equal(found[0][0], found[1][0])
    assert all(torch.equal(one, other) for one, other in zip(found[0][1], found[1][1], strict=True))
    on_cpu = group(cells)
    losses = on_cpu.steps(*samples, rows.cpu())["train_loss"]
    torch.testing.assert_close(found[0][0].cpu(), losses, rtol=1e-4, atol=1e-5)
