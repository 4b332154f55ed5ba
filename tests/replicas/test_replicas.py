"""A member of a group ends as its run alone does: whatever it is built of, and however it is trained."""

import random

import pytest
import torch
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from replica_nets import Net, Samples, train_alone, train_group, trainer
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torchmetrics import MeanMetric

from lit_gelu.replicas import ReplicaDataModule, ReplicaGroup
from lit_gelu.tasks import MNISTAutoencoder, TweetTagger

CLOSE = 1e-8  # in float64
FULL = pytest.mark.full


def assert_as_alone(build, cells, seeds, data=Samples, **options):
    """Train a group and its runs alone, and compare weights, buffers and what was validated; return the group."""
    group, its = train_group(build, cells, seeds, data, **options)
    for replica, (cell, seed, member) in enumerate(zip(cells, seeds, group.members, strict=True)):
        alone, its_alone = train_alone(build, cell, seed, data, **options)
        assert its.global_step == its_alone.global_step
        torch.testing.assert_close(member.state_dict(), alone.state_dict(), rtol=0, atol=CLOSE)
        for name, value in its_alone.callback_metrics.items():
            if name.startswith("val"):
                assert float(group.measured[name][replica]) == pytest.approx(float(value), abs=1e-6), name
    return group


@pytest.mark.parametrize("keep", [pytest.param(1.0, marks=FULL), 0.5])
def test_eight_members_of_mixed_cells_end_as_their_runs_alone(keep):
    named = ["gelu", "relu", "elu", "silu", "prelu", "swish(learnable=True)", "gelu_tanh", "zero_identity_map"]
    rates = [1e-3, 1e-4, 3e-3, 1e-3, 1e-2, 1e-3, 1e-2, 1e-3]
    cells = [
        {"activation": name, "learning_rate": rate, "keep": keep, "vector_size": 4}
        for name, rate in zip(named, rates, strict=True)
    ]
    data = lambda: Samples(12, 25)  # noqa: E731
    group = assert_as_alone(TweetTagger, cells, [0, 1, 2, 3, 0, 1, 5, 2**32 - 1], data, max_epochs=5)
    assert group.looped == {}  # all at once


# What members are made of, and whether they are computed at once.


class FunctionalDropout(nn.Module):
    def forward(self, inputs):
        return functional.dropout(inputs, 0.3, self.training)


class Branching(nn.Module):
    def forward(self, inputs):
        return inputs.relu() if inputs.sum() > 0 else inputs.abs()


class Drawing(nn.Module):
    def forward(self, inputs):
        return inputs * random.random() if self.training else inputs


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, inputs):
        self.count = self.count + 1
        return inputs / self.count


class Tied(Net):
    def __init__(self):
        super().__init__(lambda: nn.Linear(8, 8))
        self.again = self.layer

    def forward(self, inputs):
        return self.last(self.again(self.layer(self.first(inputs)).tanh()))


class Collecting(Net):
    def __init__(self):
        super().__init__()
        self.collected = []

    def training_step(self, batch):
        loss = super().training_step(batch, 0)
        self.collected.append(loss.detach())
        return loss


class PenalisedByHyperParameter(Net):
    def __init__(self, learning_rate):
        super().__init__(learning_rate=learning_rate)
        self.save_hyperparameters()

    def training_step(self, batch, batch_idx):
        penalty = self.hparams.learning_rate * self.last.weight.square().sum()
        return super().training_step(batch, batch_idx) + penalty


class Hooked(Net):
    def __init__(self):
        super().__init__()
        self.layer.register_forward_hook(lambda module, inputs, output: 2 * output)


class Choosing(Net):
    """Its step is one that can be stacked for some batches, and then no more."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * (2 if batch_idx % 4 == 3 and loss > 0 else 1)


class ByName(Net):
    def __init__(self, activation):
        super().__init__(nn.Identity)
        self.activation = activation

    def forward(self, inputs):
        return self.last(getattr(functional, self.activation)(self.first(inputs)))


class Counts(Net):
    steps = 1000.0

    def training_step(self, batch, batch_idx):
        self.steps += 1
        return super().training_step(batch, batch_idx) * self.steps


def in_a_layer(layer, configure=None):
    return lambda **cell: Net(layer, configure=configure, **cell)


def gradient_descent(module):
    return torch.optim.SGD(module.parameters(), lr=0.1)


# The gradient of a bias before a batch norm is rounding around 0, which Adam would make as large as any other.
BATCH_NORM = in_a_layer(lambda: nn.BatchNorm1d(8), gradient_descent)


@pytest.mark.parametrize(
    ("build", "cells", "at_once"),
    [
        pytest.param(in_a_layer(nn.GELU), [{}, {"learning_rate": 1.0}], True, id="rates"),
        pytest.param(Net, [{"layer": nn.ReLU}, {"layer": nn.Softplus}], True, id="layers"),
        pytest.param(Net, [{"layer": nn.PReLU}, {"layer": nn.ReLU6}], True, id="prelu"),
        pytest.param(in_a_layer(nn.Dropout), [{}, {}], True, id="dropout"),
        pytest.param(Tied, [{}, {}], True, id="tied", marks=FULL),
        pytest.param(BATCH_NORM, [{}, {}], False, id="batch norm"),
        pytest.param(in_a_layer(FunctionalDropout), [{}, {}], False, id="functional dropout", marks=FULL),
        pytest.param(in_a_layer(Branching), [{}, {}], False, id="branching"),
        pytest.param(Net, [{"layer": Drawing}, {"layer": nn.Tanh}], False, id="drawing or not"),
        pytest.param(in_a_layer(Counting), [{}, {}], False, id="counting"),
        pytest.param(Collecting, [{}, {}], False, id="collecting"),
        pytest.param(
            PenalisedByHyperParameter, [{"learning_rate": 0.1}, {"learning_rate": 0.5}], False, id="hyper-parameter"
        ),
        pytest.param(Hooked, [{}, {}], False, id="hook", marks=FULL),
        pytest.param(Choosing, [{}, {}], False, id="later"),
        pytest.param(ByName, [{"activation": "relu"}, {"activation": "gelu"}], False, id="by name"),
        pytest.param(Counts, [{}, {}], False, id="counts"),
    ],
)
def test_members_of_any_kind_end_as_their_runs_alone(build, cells, at_once):
    group = assert_as_alone(build, cells, [3, 4])
    assert set(group.looped) == (set() if at_once else {0, 1}), group.looped
    assert all(group.looped.values())


def test_nets_of_another_kind_are_stacks_of_their_own():
    classes = iter([Net, Tied, Net, Tied])
    group, _ = train_group(lambda: next(classes)(), [{}] * 4, [0, 1, 2, 3])
    assert group.looped == {}
    classes = iter([Net, Tied, Net, Tied])
    for replica, member in enumerate(group.members):
        alone, _ = train_alone(lambda: next(classes)(), {}, replica)
        torch.testing.assert_close(member.state_dict(), alone.state_dict(), rtol=0, atol=CLOSE)


def test_large_nets_are_looped_on_a_cpu():
    group, _ = train_group(MNISTAutoencoder, [{}, {}], [0, 1], lambda: Samples(784), max_steps=1)
    assert set(group.looped) == {0, 1}


# How they are trained


def with_scheduler(make, **config):
    def configure(module):
        optimizer = torch.optim.SGD(module.parameters(), lr=module.learning_rate, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make(module, optimizer), **config}}

    return configure


def by_steps(module, optimizer):
    total = module.trainer.estimated_stepping_batches
    return lr_scheduler.OneCycleLR(optimizer, module.learning_rate, total_steps=total)


def two_groups(module):
    groups = [{"params": module.first.parameters(), "lr": 0.5}, {"params": module.last.parameters()}]
    return [torch.optim.AdamW(groups, lr=module.learning_rate, amsgrad=True)]


@pytest.mark.parametrize(
    "configure",
    [
        pytest.param(two_groups, id="two parameter groups", marks=FULL),
        pytest.param(with_scheduler(by_steps, interval="step"), id="each step"),
        pytest.param(
            with_scheduler(
                lambda _, optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0, threshold=0.2),
                monitor="val_loss",
            ),
            id="on a plateau",
        ),
        pytest.param(
            with_scheduler(
                lambda _, optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0), monitor="train_loss"
            ),
            id="on a plateau of training",
        ),
    ],
)
def test_optimizers_and_schedules_are_the_members_own(configure):
    cells = [{"configure": configure, "learning_rate": rate} for rate in (0.05, 0.5)]
    assert_as_alone(Net, cells, [0, 1], max_epochs=4)


@pytest.mark.parametrize(
    "options",
    [
        {"max_steps": 11, "max_epochs": -1},
        {"accumulate_grad_batches": 2},
        {"gradient_clip_val": 0.05},
        {"val_check_interval": 3},
    ],
    ids=str,
)
def test_options_of_the_trainer_mean_what_they_mean_alone(options):
    cells = [{"layer": nn.Dropout}, {"layer": nn.Dropout, "learning_rate": 0.5}]
    assert_as_alone(Net, cells, [0, 1], **options)


@pytest.mark.gpu
def test_members_on_a_gpu_end_as_their_runs_alone():
    cells = [{"activation": name, "vector_size": 4} for name in ("gelu", "relu", "elu")]
    assert_as_alone(TweetTagger, cells, [0, 1, 2], lambda: Samples(12, 25), accelerator="cuda")


# What is validated and logged


class Noting(Net):
    """Validates with a metric and a hook."""

    def __init__(self, layer=nn.ReLU):
        super().__init__(layer)
        self.mean = MeanMetric()

    def validation_step(self, batch, batch_idx):
        self.mean.update(functional.cross_entropy(self(batch[0]), batch[1]))
        self.log("val_mean", self.mean)

    def on_validation_epoch_end(self):
        self.log("val_rate", self.optimizers().param_groups[0]["lr"])
        self.log("val_drawn", torch.rand(()))


def test_metrics_and_hooks_are_the_members_own():
    assert_as_alone(Noting, [{}, {"layer": nn.Dropout}], [0, 1])


def test_figures_of_each_member_are_logged_beside_their_mean(tmp_path):
    logger = CSVLogger(tmp_path, name="", version="")
    group, its = train_group(Net, [{}, {}], [0, 1], logger=logger, log_every_n_steps=4)
    columns = (tmp_path / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {f"{name}{end}" for name in ("train_loss", "val_loss") for end in ("", "_0", "_1")} <= set(columns)
    both = [float(its.callback_metrics[f"val_loss_{replica}"]) for replica in (0, 1)]
    assert float(its.callback_metrics["val_loss"]) == pytest.approx(sum(both) / 2)
    assert group.measured["val_loss"].tolist() == pytest.approx(both)


def test_a_test_goes_through_all_members():
    group, _ = train_group(Net, [{}, {}], [0, 1])
    its = trainer()
    its.test(group, datamodule=ReplicaDataModule(Samples()), verbose=False)
    for member, value in zip(group.members, group.measured["test_loss"], strict=True):
        (metrics,) = trainer().test(member, datamodule=Samples(), verbose=False)
        assert float(value) == pytest.approx(metrics["test_loss"], abs=1e-6)


def test_callbacks_of_lightning_see_a_group(tmp_path):
    callbacks = [
        ModelCheckpoint(tmp_path, monitor="val_loss_1", filename="best"),
        EarlyStopping("val_loss", patience=0, min_delta=10.0),
        LearningRateMonitor(),
    ]
    logger = CSVLogger(tmp_path, name="", version="")
    group, its = train_group(
        Net,
        [{}, {}],
        [0, 1],
        max_epochs=5,
        callbacks=callbacks,
        enable_checkpointing=True,
        logger=logger,
        log_every_n_steps=1,
    )
    assert its.current_epoch == 2
    other = ReplicaGroup.of(Net, [{}, {}], [5, 6]).double()
    other_trainer = trainer(callbacks=callbacks[:2], enable_checkpointing=True, default_root_dir=tmp_path)
    data = ReplicaDataModule(Samples())
    other_trainer.test(other, datamodule=data, ckpt_path=tmp_path / "best.ckpt", verbose=False)
    assert any(torch.equal(other.members[0].first.weight, member.first.weight) for member in group.members)


# Members before and after


def test_members_are_built_under_their_seeds_and_no_trace_is_left():
    seed_everything(99, verbose=False)
    before = torch.get_rng_state(), random.getstate()
    group = ReplicaGroup.of(Net, [{}, {}, {}], [1, 2, 1])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    weights = [member.first.weight for member in group.members]
    assert torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], weights[1])


def test_members_are_ordinary_modules_behind_the_fit():
    group, _ = train_group(Net, [{}, {}], [0, 1])
    member = group.members[0]
    assert member._trainer is None
    assert {"log", "optimizers"}.isdisjoint(vars(member))
    trainer(max_epochs=1).fit(member, datamodule=Samples())


def test_a_members_checkpoint_is_loaded_as_any_other(tmp_path):
    cells = [{"activation": "elu", "vector_size": 4}, {"activation": "gelu_tanh", "vector_size": 4}]
    group, its = train_group(TweetTagger, cells, [0, 1], lambda: Samples(12, 25), precision="32-true")
    its.strategy.connect(group.members[1])
    its.save_checkpoint(tmp_path / "member.ckpt", weights_only=True)
    loaded = TweetTagger.load_from_checkpoint(tmp_path / "member.ckpt")
    assert loaded.activation_spec == group.members[1].activation_spec
    torch.testing.assert_close(loaded.state_dict(), group.members[1].state_dict(), rtol=0, atol=0)
