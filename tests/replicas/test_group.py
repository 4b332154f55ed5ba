"""A group inside `Trainer.fit` against the runs alone; resumed, with other sizes of batches, and its members' files."""

import csv
import functools
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from replica_runs import (
    Keeping,
    Samples,
    Saving,
    State,
    batched_products_are_single_ones,
    check_equal,
    runs_of,
    trained_alone,
)
from small_task import quiet_trainer
from torch.nn import functional

from lit_gelu import surgery
from lit_gelu.callbacks import ExactResume
from lit_gelu.replicas import NotReplicableError, ReplicaArgumentError, ReplicaDataModule, ReplicaGroup
from lit_gelu.tasks import TweetTagger

CELLS = [
    {"activation": "relu", "keep": 0.8},
    {"activation": "gelu_tanh", "learning_rate": 1e-4, "keep": 0.5},
    {"activation": "prelu", "keep": 1.0},
]
SEEDS = [0, 1, 0]
BUILD = functools.partial(TweetTagger, vector_size=8)
EPOCH = 10  # steps


@pytest.fixture(scope="module")
def samples():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8 * EPOCH + 3, 24, generator=generator)
    return inputs, torch.randint(25, (len(inputs),), generator=generator)


def trained(samples, steps_per_batch, steps, checkpoint=None, callbacks=(), cells=CELLS, seeds=SEEDS, **options):
    """Train a group, and return it with its Trainer."""
    group = ReplicaGroup.of(BUILD, cells, seeds, steps_per_batch=steps_per_batch)
    trainer = quiet_trainer(**{"max_steps": steps, "max_epochs": -1, "callbacks": list(callbacks), **options})
    given = ReplicaDataModule(Samples(samples, 8))
    trainer.fit(group, datamodule=given, ckpt_path=checkpoint, weights_only=True if checkpoint else None)
    return group, trainer


@pytest.fixture(scope="module")
def alone(samples):
    return [trained_alone(BUILD, cell, seed, samples, 8, (27,)) for cell, seed in zip(CELLS, SEEDS, strict=True)]


@pytest.mark.parametrize("steps_per_batch", [1, 4, "auto"])
def test_a_group_is_the_runs_alone(samples, alone, steps_per_batch):
    group, trainer = trained(samples, steps_per_batch, 27)
    assert trainer.global_step == 27
    together = runs_of(group, trainer)
    losses = torch.cat(group.logged["train_loss"])  # of the epoch at hand
    for replica, (one, other) in enumerate(zip(alone, together, strict=True)):
        torch.testing.assert_close(losses[:, replica], torch.tensor(one.losses[20:]), rtol=1e-5, atol=1e-6)
        other.losses = one.losses
    check_equal(alone, together, batched_products_are_single_ones((24, 256, 256, 25), 8))


def test_the_trainer_counts_steps_and_batches(samples):
    class Counting(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
            seen.append((trainer.global_step, tuple(outputs["train_loss"].shape), trainer.current_epoch))

    seen = []
    _, trainer = trained(samples, 4, 17, callbacks=[Counting()])
    assert trainer.fit_loop.epoch_loop._batches_that_stepped == 17  # by which loggers count
    shapes = [(4, 3), (3, 3), (3, 3), (4, 3), (3, 3)]
    assert seen == list(zip((4, 7, 10, 14, 17), shapes, (0, 0, 0, 1, 1), strict=True))


def logged_by(folder):
    """Return the steps that a CSVLogger has written, and the losses."""
    with (folder / "lightning_logs" / "version_0" / "metrics.csv").open(newline="") as file:
        return {int(row["step"]): float(row["train_loss"]) for row in csv.DictReader(file)}


@pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning")
@pytest.mark.parametrize("steps_per_batch", [4, "auto"])
def test_what_counts_steps_sees_them_as_in_a_run_alone(samples, tmp_path, steps_per_batch):
    def counting(name):
        saving = ModelCheckpoint(tmp_path / name, "{step}", save_top_k=-1, every_n_train_steps=7)
        logger = CSVLogger(tmp_path / "logs" / name)
        return {"callbacks": [saving], "logger": logger, "enable_checkpointing": True, "log_every_n_steps": 3}

    cells, seeds = CELLS[:1] * 2, [0, 0]
    _, trainer = trained(samples, steps_per_batch, 47, cells=cells, seeds=seeds, **counting("group"))
    seed_everything(0, verbose=False)
    alone = quiet_trainer(max_steps=47, max_epochs=-1, limit_val_batches=0, **counting("alone"))
    alone.fit(BUILD(**CELLS[0]), datamodule=Samples(samples, 8))
    files = [sorted(path.name for path in (tmp_path / name).glob("*.ckpt")) for name in ("group", "alone")]
    assert files[0] == files[1] == sorted(f"step={step}.ckpt" for step in range(7, 47, 7))
    ours, theirs = (logged_by(tmp_path / "logs" / name) for name in ("group", "alone"))
    assert list(ours) == list(theirs) == list(range(2, 47, 3))
    assert list(ours.values()) == pytest.approx(list(theirs.values()), rel=1e-5)
    group, resumed = trained(
        samples, 3, 47, tmp_path / "group" / "step=28.ckpt", cells=cells, seeds=seeds, **counting("resumed")
    )
    assert sorted(path.name for path in (tmp_path / "resumed").glob("*.ckpt")) == ["step=35.ckpt", "step=42.ckpt"]
    check_equal(runs_of(trainer.lightning_module, trainer), runs_of(group, resumed))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("at", [1, 2, 11])
@pytest.mark.parametrize("every", [3, 50])
def test_an_interval_of_steps_does_not_change_where_a_run_goes_on(samples, tmp_path, at, every):
    saving = ModelCheckpoint(tmp_path / "every", every_n_train_steps=every)
    stopped = trained(samples, 4, at)[1]
    stopped.save_checkpoint(tmp_path / "at.ckpt")
    wanted = runs_of(*trained(samples, 4, 27))
    resumed = trained(samples, 4, 27, tmp_path / "at.ckpt", callbacks=[saving], enable_checkpointing=True)
    assert resumed[1].global_step == 27
    check_equal(wanted, runs_of(*resumed))


@pytest.fixture(scope="module")
def unbroken(samples, tmp_path_factory):
    """Return a run's folder of checkpoints, and what it ended with."""
    folder = tmp_path_factory.mktemp("group")
    group, trainer = trained(samples, 4, 27, callbacks=[Saving(folder, {4, 7, 10, 14, 20, 24})])
    trainer.save_checkpoint(folder / "27.ckpt")
    assert trainer.current_epoch == 3  # as Lightning counts an epoch that max_steps cuts off
    return folder, runs_of(group, trainer)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("steps_per_batch", [4, 3, 1, "auto"])
@pytest.mark.parametrize("at", [4, 7, 14, 24])
def test_resumed_in_an_epoch(samples, unbroken, at, steps_per_batch):
    folder, wanted = unbroken
    group, trainer = trained(samples, steps_per_batch, 27, folder / f"{at}.ckpt")
    assert (trainer.global_step, trainer.current_epoch) == (27, 3)
    check_equal(wanted, runs_of(group, trainer))


@pytest.mark.parametrize("steps_per_batch", [4, 3])
@pytest.mark.parametrize("at", [10, 20, "end of 10", "end of 20"])
def test_resumed_from_the_last_batch_of_an_epoch(samples, unbroken, at, steps_per_batch):
    folder, wanted = unbroken
    group, trainer = trained(samples, steps_per_batch, 27, folder / f"{at}.ckpt")
    assert (trainer.global_step, trainer.current_epoch) == (27, 3)
    check_equal(wanted, runs_of(group, trainer))


def test_resumed_where_max_steps_had_ended_it(samples, unbroken):
    folder, _ = unbroken
    group, trainer = trained(samples, 4, 35, folder / "27.ckpt")
    wanted = runs_of(*trained(samples, 4, 35))
    check_equal(wanted, runs_of(group, trainer))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("at", [4, 10, 14, 20, 30, "end of 20"])
def test_resumed_with_a_number_of_epochs(samples, tmp_path, at):
    ends = {"max_steps": -1, "max_epochs": 3}
    wanted = runs_of(*trained(samples, 4, None, callbacks=[Saving(tmp_path, {at})], **ends))
    if at == 30:  # saved by who ran two epochs and wants a third
        _, trainer = trained(samples, 4, None, **ends | {"max_epochs": 2})
        trainer.save_checkpoint(tmp_path / "30.ckpt")
    group, trainer = trained(samples, 3, None, tmp_path / f"{at}.ckpt", **ends)
    assert (trainer.global_step, trainer.current_epoch) == (30, 3)
    check_equal(wanted, runs_of(group, trainer))


class Stopping(Callback):
    """Lets replicas be inactive from steps on."""

    def __init__(self, **steps):
        self.steps = {int(name.removeprefix("replica")): step for name, step in steps.items()}

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        for replica, step in self.steps.items():
            if trainer.global_step >= step:
                module.active[replica] = False


@pytest.mark.one_in(2)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("at", [7, 10])  # in an epoch, and at the end of one
def test_an_inactive_replica_stays_as_it_is(samples, tmp_path, at, fused):
    cells = [{**cell, "fused_optimizer": fused} for cell in CELLS]
    alone = [
        trained_alone(BUILD, cell, seed, samples, 8, (at if replica == 2 else 27,))
        for replica, (cell, seed) in enumerate(zip(cells, SEEDS, strict=True))
    ]
    exact = batched_products_are_single_ones((24, 256, 256, 25), 8)
    group, trainer = trained(samples, 4, 27, callbacks=[Stopping(replica2=at), Saving(tmp_path, {14})], cells=cells)
    resumed, trainer_of_resumed = trained(samples, 3, 27, tmp_path / "14.ckpt", cells=cells)
    for runs, saved in ((runs_of(group, trainer), group), (runs_of(resumed, trainer_of_resumed), resumed)):
        checkpoint = saved.member_checkpoint(2)
        assert checkpoint["global_step"] == at
        random = checkpoint["callbacks"][ExactResume().state_key]["ranks"][0]["generators"]["torch"]
        runs[2].states = {at: State(checkpoint["state_dict"], checkpoint["optimizer_states"][0], random)}
        for one, other in zip(alone, runs, strict=True):
            other.losses = one.losses
        check_equal(alone, runs, exact)


@pytest.mark.parametrize("executor", ["auto", "stacked", "loop"])
def test_a_replica_that_never_made_a_step_is_resumed(samples, tmp_path, executor):
    def fitted(path=None, callbacks=()):
        group = ReplicaGroup.of(BUILD, CELLS, SEEDS, steps_per_batch=4, executor=executor)
        group.active[2] = False
        trainer = quiet_trainer(max_steps=27, max_epochs=-1, callbacks=list(callbacks))
        given = ReplicaDataModule(Samples(samples, 8))
        trainer.fit(group, datamodule=given, ckpt_path=path, weights_only=True if path else None)
        return runs_of(group, trainer)

    unbroken = fitted(callbacks=[Saving(tmp_path, {14})])
    resumed = fitted(tmp_path / "14.ckpt")
    check_equal(unbroken, resumed)
    alone = [trained_alone(BUILD, cell, 0, samples, 8, (27,)) for cell in CELLS[:1]]
    resumed[0].losses = alone[0].losses
    check_equal(alone, resumed[:1], batched_products_are_single_ones((24, 256, 256, 25), 8))
    for runs in (unbroken, resumed):
        assert runs[2].states[27].optimizer["state"] == {}  # as of a run alone before its first step
    fresh = ReplicaGroup.of(BUILD, CELLS, SEEDS).members[2].state_dict()
    torch.testing.assert_close(dict(fresh), resumed[2].states[27].weights, rtol=0, atol=0)


class Norms(LightningModule):
    """A module of somebody's own with a state that training steps change, and any optimizer."""

    def __init__(self, lr, optimizer):
        super().__init__()
        self.lr, self.kind = lr, optimizer
        self.net = torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 25))

    def training_step(self, batch, index):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return getattr(torch.optim, self.kind)(self.parameters(), self.lr)


@pytest.mark.parametrize("kind", ["Adam", "Adagrad"])
def test_an_inactive_replica_leaves_the_others_alone_whatever_it_holds(samples, kind):
    cells = [{"lr": lr, "optimizer": kind} for lr in (1e-2, 1e30, 1e-3)]

    def trained_ones(cells, callbacks=()):
        group = ReplicaGroup.of(Norms, cells, steps_per_batch=4)
        trainer = quiet_trainer(max_steps=17, callbacks=list(callbacks))
        trainer.fit(group, datamodule=ReplicaDataModule(Samples(samples, 8)))
        return group, runs_of(group, trainer)

    group, runs = trained_ones(cells, [Stopping(replica1=4)])
    _, at_its_end = trained_ones(cells, [Stopping(replica0=4, replica1=4, replica2=4)])
    assert not all(torch.isfinite(tensor).all() for tensor in group.members[1].state_dict().values())
    torch.testing.assert_close(
        runs[1].states[17].weights, at_its_end[1].states[4].weights, rtol=0, atol=0, equal_nan=True
    )
    check_equal([runs[0], runs[2]], trained_ones([cells[0], cells[2]])[1])
    logged = torch.cat(group.logged["train_loss"])[-1]
    assert float(group.trainer.callback_metrics["train_loss"]) == pytest.approx(float(logged[[0, 2]].mean()))


def test_a_run_ends_when_no_replica_is_active(samples):
    group, trainer = trained(samples, 4, 27, callbacks=[Stopping(replica0=4, replica1=7, replica2=7)])
    assert trainer.global_step == 7
    assert group.member_checkpoint(0)["global_step"] == 4


@pytest.mark.parametrize("steps", [4, 10])  # in an epoch, and at the end of one
def test_no_step_is_made_when_no_replica_is_active_as_a_batch_begins(samples, steps):
    class Ending(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_index):
            if trainer.global_step == steps:
                module.active[:] = False

    group, trainer = trained(samples, 2, 27, callbacks=[Ending()])
    assert trainer.global_step == group.member_checkpoint(1)["global_step"] == steps


@pytest.mark.parametrize("least", [{"min_steps": 13}, {"min_epochs": 2}])
def test_as_many_steps_are_made_as_were_asked_for_at_least(samples, least):
    stopping = Stopping(replica0=4, replica1=4, replica2=4)
    group, trainer = trained(samples, 1, 27, callbacks=[stopping], **least)
    assert trainer.global_step == (13 if "min_steps" in least else 2 * EPOCH)
    assert group.member_checkpoint(0)["global_step"] == 4


def test_only_what_a_device_reads_is_brought_there(samples):
    given = ReplicaDataModule(Samples(samples, 8))
    given.trainer = SimpleNamespace(training=True)
    meta, numbers = torch.device("meta"), torch.arange(3)
    assert given.transfer_batch_to_device(numbers, meta, 0).device.type == "cpu"
    given.trainer.training = False
    inputs, labels = given.transfer_batch_to_device((samples[0], numbers), meta, 0)
    assert inputs.device == labels.device == meta


def test_a_replica_cannot_become_active_again(samples):
    class Waking(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
            module.active[0] = trainer.global_step >= 8

    with pytest.raises(ReplicaArgumentError, match=r"replicas \[0\] were inactive.*Train those alone"):
        trained(samples, 4, 27, callbacks=[Waking()])


class SavingMember(Callback):
    """Saves a member in the hooks behind a step."""

    def __init__(self, path, step):
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        if trainer.global_step == self.step:
            module.save_member(1, self.path)


@pytest.mark.parametrize("at", [17, 20])
@pytest.mark.parametrize("in_hook", [False, True])
def test_a_members_run_goes_on_alone(samples, alone, tmp_path, at, in_hook):
    saving = SavingMember(tmp_path / "member.ckpt", at)
    group, _ = trained(samples, 4, 27 if in_hook else at, callbacks=[saving] if in_hook else [])
    if not in_hook:
        group.save_member(1, tmp_path / "member.ckpt")
    module, keeping = BUILD(**CELLS[1]), Keeping((27,))
    trainer = quiet_trainer(max_steps=27, max_epochs=-1, limit_val_batches=0, callbacks=[ExactResume(), keeping])
    trainer.fit(module, datamodule=Samples(samples, 8), ckpt_path=tmp_path / "member.ckpt", weights_only=True)
    assert (trainer.global_step, trainer.current_epoch) == (27, 3)
    keeping.run.losses = alone[1].losses
    check_equal([alone[1]], [keeping.run], batched_products_are_single_ones((24, 256, 256, 25), 8))


def test_a_members_checkpoint_is_an_ordinary_one(samples, tmp_path):
    group, _ = trained(samples, 4, 24)
    saved = group.member_checkpoint(1)
    torch.save(saved, tmp_path / "member.ckpt")
    size = sum(tensor.nbytes for tensor in saved["state_dict"].values())
    assert (tmp_path / "member.ckpt").stat().st_size < 3.1 * size + 30_000  # weights, two moments, what names them
    loaded = TweetTagger.load_from_checkpoint(tmp_path / "member.ckpt")
    assert loaded.hparams == group.members[1].hparams
    torch.testing.assert_close(loaded.state_dict(), group.members[1].state_dict(), rtol=0, atol=0)


def test_other_data_are_refused(samples):
    group = ReplicaGroup.of(BUILD, CELLS[:1])
    with pytest.raises(NotReplicableError, match="ReplicaDataModule"):
        quiet_trainer(max_steps=1).fit(group, datamodule=Samples(samples, 8))
    with pytest.raises(ReplicaArgumentError, match="InMemoryDataModule"):
        ReplicaDataModule([1])


@pytest.mark.parametrize("steps", [0, True, 1.5, "all"])
def test_steps_per_batch(steps):
    with pytest.raises(ReplicaArgumentError, match="at least 1"):
        ReplicaGroup.of(BUILD, CELLS[:1], steps_per_batch=steps)


def test_another_groups_checkpoint_is_refused(samples, unbroken):
    folder, _ = unbroken
    with pytest.raises(ReplicaArgumentError, match=r"seeds \[0, 1, 0\]; this group has the seeds \[0, 1, 2\]"):
        trained(samples, 4, 27, folder / "7.ckpt", seeds=[0, 1, 2])


class Sometimes(LightningModule):
    """Logs a figure in every third step, and one in the third step alone."""

    def __init__(self, lr=0.1):
        super().__init__()
        self.net, self.lr = torch.nn.Linear(24, 25), lr

    def training_step(self, batch, index):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        if index % 3 == 0:
            self.log("third", float(index))
        if index == 2:
            self.log("once", 5.0)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr)


@pytest.mark.parametrize("steps_per_batch", [1, 4, "auto"])
@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_loggers_see_what_some_steps_log_as_in_a_run_alone(samples, tmp_path, executor, steps_per_batch):
    def told(name):
        logger = CSVLogger(tmp_path / name)
        return {"logger": logger, "log_every_n_steps": 2, "max_steps": 17, "max_epochs": -1, "limit_val_batches": 0}

    group = ReplicaGroup.of(Sometimes, [{}, {}], [0, 0], executor=executor, steps_per_batch=steps_per_batch)
    quiet_trainer(**told("group")).fit(group, datamodule=ReplicaDataModule(Samples(samples, 8)))
    seed_everything(0, verbose=False)
    given = Samples(samples, 8)
    given.setup("fit")
    quiet_trainer(**told("alone")).fit(Sometimes(), given.train_dataloader())
    files = [tmp_path / name / "lightning_logs" / "version_0" / "metrics.csv" for name in ("group", "alone")]
    ours, theirs = ([*csv.DictReader(file.read_text().splitlines())] for file in files)
    assert [row["step"] for row in ours] == [row["step"] for row in theirs] == [str(step) for step in range(1, 17, 2)]
    for name in ("third", "once"):
        assert [row[name] for row in ours] == [row[name] for row in theirs]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("limits", [{"max_epochs": 3, "max_steps": -1}, {"max_steps": 30}], ids=["epochs", "steps"])
@pytest.mark.parametrize("steps_per_batch", [1, 4])
def test_loggers_count_the_steps_of_a_resumed_run_as_those_of_the_whole_one(samples, tmp_path, steps_per_batch, limits):
    def logged_in(name, checkpoint=None, callbacks=()):
        logger = CSVLogger(tmp_path / name)
        options = {"logger": logger, "log_every_n_steps": 1, **limits}
        trained(samples, steps_per_batch, 30, checkpoint, callbacks, CELLS[:2], SEEDS[:2], **options)
        return logged_by(tmp_path / name)

    whole = logged_in("whole", callbacks=[Saving(tmp_path, {4, 10, 17, 20})])
    checkpoints = sorted(tmp_path.glob("*.ckpt"))
    assert len(checkpoints) >= 5
    for path in checkpoints:
        step = int(path.stem.removeprefix("end of "))
        if step < 30:
            resumed = logged_in(f"resumed from {path.stem}", path)
            assert resumed == pytest.approx(
                {number: loss for number, loss in whole.items() if number >= step}, rel=1e-6
            )


class Swapping(Callback):
    """Puts an activation with parameters into the members, in a hook."""

    def __init__(self, hook):
        setattr(self, hook, self.swap)

    def swap(self, trainer, group, *_):
        for member in group.members:
            surgery.swap(member, {"*": "prelu(init=0.5)"})


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_an_activation_with_parameters_is_refused_in_training(samples, executor):
    group = ReplicaGroup.of(BUILD, CELLS[:2], SEEDS[:2], steps_per_batch=2, executor=executor)
    trainer = quiet_trainer(max_steps=EPOCH, max_epochs=-1, callbacks=[Swapping("on_train_batch_end")])
    with pytest.raises(NotReplicableError, match="Members have other parameters"):
        trainer.fit(group, datamodule=ReplicaDataModule(Samples(samples, 8)))


def test_a_member_is_an_ordinary_module_once_training_is_over(samples):
    group, _ = trained(samples, 4, EPOCH, cells=CELLS[:2], seeds=SEEDS[:2], callbacks=[Swapping("on_train_end")])
    trainer = quiet_trainer(precision="64-true")  # moves the group, and what was put in with it
    trainer.test(group, datamodule=ReplicaDataModule(Samples(samples, 8)), verbose=False)
    for member in group.members:
        x = inputs = samples[0][:4].double()
        for layer in member.hidden:
            x = functional.prelu(layer.linear(x), torch.full((1,), 0.5, dtype=torch.float64))
        torch.testing.assert_close(member.eval()(inputs), member.output(x), rtol=1e-12, atol=1e-12)
    with pytest.raises(NotReplicableError, match="Members have other parameters"):
        quiet_trainer(max_epochs=1).fit(group, datamodule=ReplicaDataModule(Samples(samples, 8)))
