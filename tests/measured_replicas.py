"""A module that measures in every way that Lightning knows, trained, validated and tested alone and in a group."""

import torch
from lightning.pytorch import Callback, LightningModule, seed_everything
from replica_runs import Run, Samples, State
from small_task import quiet_trainer
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy

from lit_gelu.data.in_memory import InMemorySamples
from lit_gelu.replicas import ReplicaDataModule, ReplicaGroup


class Sets(Samples):
    """Random training, validation and test sets; the last validation batch is a smaller one."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)

        def drawn(count):
            return torch.randn(count, 24, generator=generator), torch.randint(25, (count,), generator=generator)

        super().__init__(drawn(48), 8)
        self.others = InMemorySamples(*drawn(19)), InMemorySamples(*drawn(21))

    def load_train_and_val(self):
        return InMemorySamples(*self.samples), self.others[0]

    def load_test(self):
        return self.others[1]


class Measuring(LightningModule):
    """A module of somebody's own that measures in every way that Lightning knows."""

    def __init__(self, lr=0.1, keep=0.5, schedule=None):
        super().__init__()
        self.lr, self.schedule = lr, schedule
        self.net = torch.nn.Sequential(
            torch.nn.Linear(24, 32), torch.nn.ELU(), torch.nn.Dropout(1 - keep), torch.nn.Linear(32, 25)
        )
        self.accuracy = MulticlassAccuracy(25, average="micro")
        self.noisy = torch.nn.Dropout(0.25)
        self.seen = []

    def training_step(self, batch, index):
        loss = functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        logits = self.net(batch[0])
        loss = functional.cross_entropy(logits, batch[1])
        self.accuracy(logits, batch[1])
        self.log_dict({"val_loss": loss, "val_largest": logits.max()})
        self.log("val_most", logits.max(), reduce_fx="max", batch_size=1)
        self.log("val_accuracy", self.accuracy, prog_bar=True)
        self.log("val_noise", functional.dropout(logits, training=True).sum())
        self.seen.append(float(loss))

    def on_validation_epoch_end(self):
        self.log("val_mean", torch.tensor(self.seen).mean())
        self.seen.clear()

    def test_step(self, batch, index):
        self.log("test_loss", functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), self.lr, momentum=0.9)
        return optimizer if self.schedule is None else self.schedule(optimizer, self)


class Curves(Callback):
    """Keeps what a run, or a group, has in ``callback_metrics`` behind each validation, and the weights at its end."""

    def __init__(self):
        self.values = []

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            logged = {name: value.clone() for name, value in trainer.callback_metrics.items() if name[:3] == "val"}
            self.values.append((logged, dict(getattr(module, "measured", {}))))


def run_alone(build, cell, seed, **options):
    """Train, validate and test a module as anybody would; return its curves, its tests and its last state."""
    curves, data = Curves(), Sets()
    seed_everything(seed, verbose=False)
    module = build(**cell)
    trainer = quiet_trainer(callbacks=[curves], **options)
    trainer.fit(module, datamodule=data)
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = State(weights, trainer.optimizers[0].state_dict(), torch.get_rng_state())
    tested = trainer.test(module, datamodule=data, verbose=False)[0]
    return [logged for logged, _ in curves.values], tested, Run({trainer.global_step: state})


def run_together(build, cells, seeds, steps_per_batch=4, **options):
    """Do the same with a group; return also what it logs itself."""
    curves, data = Curves(), ReplicaDataModule(Sets())
    group = ReplicaGroup.of(build, cells, seeds, steps_per_batch=steps_per_batch)
    trainer = quiet_trainer(callbacks=[curves], **options)
    trainer.fit(group, datamodule=data)
    streams, step = group.executor.streams.states(), trainer.global_step
    saved = [group.member_checkpoint(replica) for replica in range(len(cells))]
    states = [State(one["state_dict"], one["optimizer_states"][0], s) for one, s in zip(saved, streams, strict=True)]
    mean = trainer.test(group, datamodule=data, verbose=False)[0]
    return curves.values, group, mean, [Run({step: state}) for state in states]


CELLS = [{"lr": 0.1}, {"lr": 0.01, "keep": 1.0}, {"lr": 0.5, "keep": 0.8}]
SEEDS = [0, 1, 0]
SIZES = (24, 32, 25)


def check_as_alone(build, cells=CELLS, data=Sets, executor="auto", **options):
    """Train members in a group and alone, and compare weights and what they have measured."""
    group = ReplicaGroup.of(build, cells, SEEDS[: len(cells)], executor=executor, steps_per_batch=4)
    options = {"max_epochs": 3, **options}
    quiet_trainer(**options).fit(group, datamodule=ReplicaDataModule(data()))
    for replica, (cell, seed) in enumerate(zip(cells, SEEDS, strict=False)):
        seed_everything(seed, verbose=False)
        module, trainer = build(**cell), quiet_trainer(**options)
        trainer.fit(module, datamodule=data())
        ours = dict(group.members[replica].state_dict())
        torch.testing.assert_close(ours, dict(module.state_dict()), rtol=1e-4, atol=1e-5)
        for name, values in group.measured.items():
            torch.testing.assert_close(values[replica], trainer.callback_metrics[name].cpu(), rtol=1e-4, atol=1e-5)
