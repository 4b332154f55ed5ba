"""Schedulers of members against Lightning's own stepping of the runs alone: rates, states and weights."""

import functools
import warnings

import pytest
import torch
from lightning.pytorch import Callback
from measured_replicas import CELLS, SEEDS, SIZES, Measuring, Sets, run_alone, run_together
from replica_runs import batched_products_are_single_ones, check_equal
from small_task import quiet_trainer
from torch.optim import lr_scheduler

from lit_gelu.callbacks import ExactResume
from lit_gelu.replicas import NotReplicableError, ReplicaDataModule, ReplicaGroup
from lit_gelu.replicas.membership.same_values import same
from lit_gelu.replicas.membership.stacks import Stacks
from lit_gelu.replicas.optimizers.group_optimizers import MemberOptimizers, StackedAdam, group_optimizer
from lit_gelu.replicas.optimizers.rate_schedules import configured

EPOCH = 6  # steps


def with_schedule(scheduler, interval="epoch", **options):
    """Return what a member configures: its optimizer and one scheduler."""

    def given(optimizer, module):
        own = scheduler(optimizer, module)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": own, "interval": interval, **options}}

    return given


def adam(optimizer, module, scheduler):
    """Return Adam instead of the module's optimizer."""
    own = torch.optim.Adam(module.parameters(), module.lr / 10)
    return {"optimizer": own, "lr_scheduler": {"scheduler": scheduler(own), "interval": "step", "frequency": 2}}


def one_cycle(optimizer, module):
    return lr_scheduler.OneCycleLR(optimizer, module.lr, total_steps=module.trainer.estimated_stepping_batches)


def plateau(optimizer, module):
    return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)


def by_step(optimizer, module):
    return lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step * module.lr))


class Stepping(Measuring):
    """A module with a scheduler that only its own ``lr_scheduler_step`` can step."""

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step(self.global_step)


SCHEDULES = {
    "by epochs": (with_schedule(lambda o, m: lr_scheduler.StepLR(o, 1, gamma=0.5)), {"max_epochs": 3}),
    "by two epochs": (with_schedule(lambda o, m: lr_scheduler.ExponentialLR(o, 0.5), frequency=2), {"max_epochs": 4}),
    "by steps": (with_schedule(by_step, "step"), {"max_steps": 2 * EPOCH + 2}),
    "by four steps": (with_schedule(by_step, "step", frequency=4), {"max_epochs": 2}),
    "one cycle": (with_schedule(one_cycle, "step"), {"max_epochs": 2}),
    "on a plateau": (with_schedule(plateau, monitor="val_loss"), {"max_epochs": 5}),
    "on a maximum": (with_schedule(plateau, monitor="val_accuracy", frequency=2), {"max_epochs": 4}),
    "two": (
        lambda o, m: ([o], [lr_scheduler.ExponentialLR(o, 0.9), {"scheduler": by_step(o, m), "interval": "step"}]),
        {"max_epochs": 2},
    ),
    "Adam": (functools.partial(adam, scheduler=lambda o: lr_scheduler.CosineAnnealingLR(o, 7)), {"max_epochs": 3}),
    "Adam, cyclic": (
        functools.partial(adam, scheduler=lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9)),
        {"max_epochs": 2},
    ),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", SCHEDULES)
def test_members_follow_their_schedules(name):
    schedule, options = SCHEDULES[name]
    cells = [{**cell, "schedule": schedule} for cell in CELLS]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Detected call of")  # schedulers want to see optimizers step
        _, group, _, together = run_together(Measuring, cells, SEEDS, **options)
    changed = []
    for replica, (cell, seed) in enumerate(zip(cells, SEEDS, strict=True)):
        _, _, alone = run_alone(Measuring, cell, seed, **options)
        check_equal([alone], [together[replica]], batched_products_are_single_ones(SIZES, 8))
        (state,) = alone.states.values()
        (ours,) = together[replica].states.values()
        assert ours.optimizer["param_groups"] == state.optimizer["param_groups"]
        changed.append(state.optimizer["param_groups"][0]["lr"] != cell["lr"])
    assert any(changed)
    assert all(group.member_checkpoint(replica)["lr_schedulers"] for replica in range(3))


def test_a_hook_of_the_module_steps_its_scheduler():
    def schedule(optimizer, module):
        return [optimizer], [{"scheduler": lr_scheduler.StepLR(optimizer, 5), "interval": "step"}]

    cells = [{**cell, "schedule": schedule} for cell in CELLS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about step(epoch)
        *_, together = run_together(Stepping, cells, SEEDS, max_epochs=2)
        alone = [run_alone(Stepping, cell, seed, max_epochs=2)[2] for cell, seed in zip(cells, SEEDS, strict=True)]
    check_equal(alone, together, batched_products_are_single_ones(SIZES, 8))


class Saving(Callback):
    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        trainer.save_checkpoint(self.folder / f"{trainer.global_step}.ckpt")

    def on_validation_end(self, trainer, module):
        trainer.save_checkpoint(self.folder / f"validated {trainer.global_step}.ckpt")

    def on_train_epoch_end(self, trainer, module):
        trainer.save_checkpoint(self.folder / f"end of {trainer.global_step}.ckpt")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["one cycle", "on a plateau"])
def test_a_group_with_schedules_is_resumed(name, tmp_path):
    schedule, options = SCHEDULES[name]
    cells, given = [{**cell, "schedule": schedule} for cell in CELLS], ReplicaDataModule(Sets())
    options = {"max_epochs": 4}

    def fitted(steps_per_batch, path=None, callbacks=()):
        group = ReplicaGroup.of(Measuring, cells, SEEDS, steps_per_batch=steps_per_batch)
        trainer = quiet_trainer(**options, callbacks=list(callbacks))
        trainer.fit(group, datamodule=given, ckpt_path=path, weights_only=True if path else None)
        return [group.member_checkpoint(replica) for replica in range(3)]

    wanted = fitted(4, callbacks=[Saving(tmp_path)])
    for at in (4, 6, 10, "validated 6", "validated 18", "end of 12"):
        resumed = fitted(3, tmp_path / f"{at}.ckpt")
        for one, other in zip(wanted, resumed, strict=True):
            for part in ("state_dict", "optimizer_states", "lr_schedulers", "global_step", "epoch"):
                assert same(other[part], one[part]), f"{part} of the run resumed from {at}"


def test_a_member_with_a_schedule_goes_on_alone(tmp_path):
    cells = [{**cell, "schedule": SCHEDULES["by four steps"][0]} for cell in CELLS]
    group = ReplicaGroup.of(Measuring, cells, SEEDS)
    quiet_trainer(max_steps=8).fit(group, datamodule=ReplicaDataModule(Sets()))
    torch.save(group.member_checkpoint(1), tmp_path / "member.ckpt")
    module = Measuring(**cells[1])
    trainer = quiet_trainer(max_epochs=3, callbacks=[ExactResume()])
    trainer.fit(module, datamodule=Sets(), ckpt_path=tmp_path / "member.ckpt", weights_only=True)
    wanted = run_alone(Measuring, cells[1], SEEDS[1], max_epochs=3)[2].states[3 * EPOCH]
    assert trainer.optimizers[0].state_dict()["param_groups"] == wanted.optimizer["param_groups"]
    if batched_products_are_single_ones(SIZES, 8):
        torch.testing.assert_close(dict(module.state_dict()), wanted.weights, rtol=0, atol=0)


def test_the_schedule_of_an_inactive_replica_stands_still():
    class Stopping(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
            module.active[0] = False

    cells = [{**cell, "schedule": SCHEDULES["by steps"][0]} for cell in CELLS]
    group = ReplicaGroup.of(Measuring, cells, SEEDS, steps_per_batch=4)
    quiet_trainer(max_epochs=2, callbacks=[Stopping()]).fit(group, datamodule=ReplicaDataModule(Sets()))
    epochs = [group.member_checkpoint(replica)["lr_schedulers"][0]["last_epoch"] for replica in range(3)]
    assert epochs == [4, 12, 12]


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (lambda o, m: None, "Unknown configuration"),
        (lambda o, m: [o, o], r"returned 2 optimizers.*alone"),
        (lambda o, m: torch.optim.LBFGS(m.parameters()), r"returned LBFGS, whose step computes the loss.*no closure"),
        (with_schedule(plateau, "step", monitor="val_loss"), r'val_loss.*interval="epoch"'),
        (with_schedule(plateau), "must include a monitor"),
        (with_schedule(lambda o, m: object()), "_Stateful|is invalid"),
        (with_schedule(by_step, "batch"), '"step" or "epoch"'),
    ],
)
def test_what_no_group_can_step_is_refused(schedule, said):
    with pytest.raises(NotReplicableError, match=rf"(?s)configure_optimizers.*({said})"):
        configured(Measuring(schedule=schedule))


@pytest.mark.parametrize("monitor", ["train_loss", "nothing"])
def test_a_plateau_of_what_is_not_validated_is_refused(monitor):
    group = ReplicaGroup.of(Measuring, [{"schedule": with_schedule(plateau, monitor=monitor)}])
    with pytest.raises(NotReplicableError, match=rf"{monitor}.*validation_step"):
        quiet_trainer(max_epochs=1).fit(group, datamodule=ReplicaDataModule(Sets()))


@pytest.mark.parametrize(
    ("scheduler", "kind"),
    [
        (lambda o: lr_scheduler.CosineAnnealingLR(o, 4), StackedAdam),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o), StackedAdam),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9), MemberOptimizers),
        (lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.ConstantLR(o)] * 2, [3]), MemberOptimizers),
    ],
)
def test_adam_is_stacked_where_only_rates_change(scheduler, kind):
    def schedule(_, module):
        optimizer = torch.optim.Adam(module.parameters())
        return {"optimizer": optimizer, "lr_scheduler": scheduler(optimizer), "monitor": "val_loss"}

    assert type(group_optimizer(Stacks([Measuring(schedule=schedule), Measuring(schedule=schedule)]))) is kind
