"""Validation and test of a group: every member's values are those of its run alone, in training and afterwards."""

import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from lightning.pytorch.callbacks import EarlyStopping
from measured_replicas import CELLS, SEEDS, SIZES, Measuring, Sets, run_alone, run_together
from replica_runs import batched_products_are_single_ones, check_equal
from small_task import quiet_trainer
from torch.utils.data import DataLoader

from lit_gelu.data.in_memory import InMemorySamples, whole_batch
from lit_gelu.replicas import NotReplicableError, ReplicaArgumentError, ReplicaDataModule, ReplicaGroup
from lit_gelu.tasks import TweetTagger


def compare(build, cells, sizes=SIZES, **options):
    """Compare the curves, the tests and the last states of a group with the runs alone."""
    alone = [run_alone(build, cell, seed, **options) for cell, seed in zip(cells, SEEDS, strict=True)]
    curves, group, mean, runs = run_together(build, cells, SEEDS, **options)
    exact = batched_products_are_single_ones(sizes, 8)
    tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-4, "atol": 1e-5}
    for replica, (wanted, tested, _) in enumerate(alone):
        assert len(wanted) == len(curves)
        for own, (_, measured) in zip(wanted, curves, strict=True):
            ours = {name: values[replica] for name, values in measured.items()}
            torch.testing.assert_close(ours, own, **tolerance)
        ours = {name: float(values[replica]) for name, values in group.measured.items()}
        assert ours == pytest.approx(tested, rel=1e-9 if exact else 1e-4)
    for logged, measured in curves:
        torch.testing.assert_close(logged, {name: values.mean() for name, values in measured.items()})
    assert mean == pytest.approx({name: float(values.mean()) for name, values in group.measured.items()})
    check_equal([run for *_, run in alone], runs, exact)


def tagger(**cell):
    return TweetTagger(vector_size=8, **cell)


@pytest.mark.parametrize("options", [{"max_epochs": 3}, {"max_steps": 10, "num_sanity_val_steps": 0}])
def test_a_task(options):
    cells = [
        {"activation": "zero_identity_map", "keep": 0.8},
        {"activation": "gelu", "keep": 0.5, "learning_rate": 1e-2},
        {"activation": "prelu", "keep": 1.0},
    ]
    compare(tagger, cells, (24, 256, 256, 25), **options)


@pytest.mark.parametrize("options", [{"max_epochs": 3}, {"max_epochs": 4, "check_val_every_n_epoch": 2}])
def test_a_module_that_measures_in_many_ways(options):
    compare(Measuring, CELLS, **options)


def test_callbacks_see_the_mean_of_those_that_are_active():
    class Stopping(Callback):
        def on_train_epoch_end(self, trainer, module):
            module.active[2] = False

    curves, group, *_ = run_together(Measuring, CELLS, SEEDS, max_epochs=2)
    assert float(curves[-1][0]["val_loss"]) == pytest.approx(float(curves[-1][1]["val_loss"].mean()))
    stopping = EarlyStopping("val_accuracy", mode="max", patience=1, stopping_threshold=-1.0)
    trainer = quiet_trainer(max_epochs=9, callbacks=[Stopping(), stopping], min_epochs=2)
    group = ReplicaGroup.of(Measuring, CELLS, SEEDS, steps_per_batch=4)
    trainer.fit(group, datamodule=ReplicaDataModule(Sets()))
    assert trainer.current_epoch == 2
    assert float(trainer.callback_metrics["val_loss"]) == pytest.approx(float(group.measured["val_loss"][:2].mean()))


class Briefly(Measuring):
    """Steps without the batch's number, and a buffer that validation assigns."""

    def __init__(self, **cell):
        super().__init__(**cell)
        self.register_buffer("best", torch.tensor(9.0))

    def training_step(self, batch):
        return super().training_step(batch, 0) * (1 + self.best)

    def validation_step(self, batch):
        super().validation_step(batch, 0)

    def on_validation_epoch_end(self):
        self.best = torch.minimum(self.best, torch.tensor(self.seen).mean())
        super().on_validation_epoch_end()


def test_steps_without_the_batchs_number_and_buffers_that_are_assigned():
    compare(Briefly, CELLS, max_epochs=3)
    _, group, *_ = run_together(Briefly, CELLS, SEEDS, max_epochs=2)
    assert group.state_dict()["best"].tolist() == [float(member.best) for member in group.members]
    assert float(group.state_dict()["best"].max()) < 9


def test_validation_by_itself():
    group = ReplicaGroup.of(Measuring, CELLS, SEEDS)
    trainer, data = quiet_trainer(), Sets()
    trainer.validate(group, datamodule=ReplicaDataModule(data), verbose=False)
    for replica, member in enumerate(group.members):
        values = quiet_trainer().validate(member, datamodule=data, verbose=False)[0]
        assert float(group.measured["val_loss"][replica]) == values["val_loss"]
        assert float(group.measured["val_accuracy"][replica]) == values["val_accuracy"]


def test_a_group_predicts_nothing():
    with pytest.raises(NotReplicableError, match=r"group\.members\[0\]"):
        quiet_trainer().predict(ReplicaGroup.of(Measuring, CELLS[:1]), torch.zeros(2, 24))


class Hooked(Measuring):
    """A hook that a group would leave out."""

    def on_train_epoch_start(self):
        self.lr = 0


class Noisy(Measuring):
    """Keeps dropout on in validation."""

    def on_validation_model_eval(self):
        self.net[2].train()


class Manual(Measuring):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class Transferring(Sets):
    def on_after_batch_transfer(self, batch, loader):
        return batch


class Loading(Sets):
    def train_dataloader(self):
        return super().train_dataloader()


class OtherSamples(InMemorySamples):
    def __getitems__(self, indices):
        return super().__getitems__(indices)


class Augmenting(Sets):
    def load_train_and_val(self):
        return OtherSamples(*self.samples), self.others[0]


def test_hooks_that_a_group_does_not_call_are_refused():
    with pytest.raises(
        NotReplicableError,
        match=r"hook on_train_epoch_start.*training_step, validation_step, configure_optimizers or a",
    ):
        ReplicaGroup.of(Hooked, CELLS)
    with pytest.raises(NotReplicableError, match=r"hook on_validation_model_eval.*validation_step"):
        ReplicaGroup.of(Noisy, CELLS)
    with pytest.raises(NotReplicableError, match="automatic_optimization=False"):
        ReplicaGroup.of(Manual, [{}])
    for kind, said in ((Transferring, "on_after_batch_transfer.*load_train_and_val"), (Loading, "train_dataloader")):
        with pytest.raises(ReplicaArgumentError, match=said):
            ReplicaDataModule(kind())
    with pytest.raises(ReplicaArgumentError, match=r"way of its own \(OtherSamples\)"):
        quiet_trainer(max_epochs=1).fit(ReplicaGroup.of(Measuring, [{}]), datamodule=ReplicaDataModule(Augmenting()))


class Shuffling(Sets):
    """Loaders of its own, which shuffle."""

    def __init__(self, generator=None):
        super().__init__()
        self.generator = generator

    def shuffled(self, samples):
        return DataLoader(samples, 8, shuffle=True, collate_fn=whole_batch, generator=self.generator)

    def val_dataloader(self):
        return self.shuffled(self.val_set)

    def test_dataloader(self):
        return self.shuffled(self.test_set)


def test_an_order_that_each_run_alone_would_draw_is_refused():
    steps = []

    class Counting(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
            steps.append(trainer.global_step)

    group = ReplicaGroup.of(Measuring, CELLS, SEEDS)
    trainer = quiet_trainer(max_epochs=1, num_sanity_val_steps=0, callbacks=[Counting()])
    with pytest.raises(ReplicaArgumentError, match=r"Shuffling\.val_dataloader .* RandomSampler.*shuffle=True"):
        trainer.fit(group, datamodule=ReplicaDataModule(Shuffling()))
    assert not steps
    with pytest.raises(ReplicaArgumentError, match=r"Shuffling\.test_dataloader .* RandomSampler.*generator="):
        quiet_trainer().test(group, datamodule=ReplicaDataModule(Shuffling()))


@pytest.mark.filterwarnings("ignore:Your `val_dataloader`'s sampler has shuffling:UserWarning")
def test_a_loader_that_shuffles_by_a_generator_of_its_own():
    cells, data = CELLS[:2], [Shuffling(torch.Generator().manual_seed(3)) for _ in range(3)]
    group = ReplicaGroup.of(Measuring, cells, SEEDS[:2])
    quiet_trainer(max_epochs=2).fit(group, datamodule=ReplicaDataModule(data[0]))
    for replica, (cell, seed) in enumerate(zip(cells, SEEDS, strict=False)):
        seed_everything(seed, verbose=False)
        module, trainer = Measuring(**cell), quiet_trainer(max_epochs=2)
        trainer.fit(module, datamodule=data[replica + 1])
        assert float(group.measured["val_noise"][replica]) == float(trainer.callback_metrics["val_noise"])
        torch.testing.assert_close(dict(group.members[replica].state_dict()), dict(module.state_dict()))


class Sometimes(Measuring):
    def validation_step(self, batch, index):
        self.log("narrow" if self.lr < 0.1 else "wide", 1.0)


def test_members_that_log_other_names():
    with pytest.raises(NotReplicableError, match="log the same ones"):
        run_together(Sometimes, CELLS, SEEDS, max_epochs=1)
