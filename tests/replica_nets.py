"""A small net, random samples, and how a group and its runs alone are trained on them."""

import torch
from lightning.pytorch import LightningModule, seed_everything
from lightning.pytorch.utilities.seed import isolate_rng
from small_task import quiet_trainer
from torch import nn
from torch.nn import functional

from lit_gelu.data import InMemoryDataModule
from lit_gelu.data.in_memory import InMemorySamples
from lit_gelu.replicas import ReplicaDataModule, ReplicaGroup

SIZE, CLASSES = 6, 3


class Samples(InMemoryDataModule):
    """Random samples; 8 training batches."""

    def __init__(self, features=SIZE, classes=CLASSES, batch_size=8):
        super().__init__(batch_size)
        generator = torch.Generator().manual_seed(5)
        inputs = torch.rand(8 * batch_size + 3, features, generator=generator)
        self.all = inputs, torch.randint(classes, (len(inputs),), generator=generator)

    def load_train_and_val(self):
        return InMemorySamples(*self.all), InMemorySamples(*(tensor[:20] for tensor in self.all))

    def load_test(self):
        return InMemorySamples(*(tensor[20:40] for tensor in self.all))


class Net(LightningModule):
    """A small net with whatever layer behind the first one."""

    def __init__(self, layer=nn.ReLU, learning_rate=0.1, configure=None):
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(SIZE, 8), layer(), nn.Linear(8, CLASSES)
        self.learning_rate, self.configure = learning_rate, configure

    def forward(self, inputs):
        return self.last(self.layer(self.first(inputs)))

    def training_step(self, batch, batch_idx):
        loss = functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", functional.cross_entropy(self(batch[0]), batch[1]), on_epoch=True, prog_bar=True)

    def test_step(self, batch):
        self.log_dict({"test_loss": functional.cross_entropy(self(batch[0]), batch[1])})

    def configure_optimizers(self):
        if self.configure is None:
            return torch.optim.Adam(self.parameters(), lr=self.learning_rate)
        return self.configure(self)


def trainer(max_epochs=2, **options):
    return quiet_trainer(max_epochs=max_epochs, **{"precision": "64-true", **options})


def train_group(build, cells, seeds, data=Samples, **options):
    group = ReplicaGroup.of(build, cells, seeds)
    its = trainer(**options)
    its.fit(group, datamodule=ReplicaDataModule(data()))
    return group, its


def train_alone(build, cell, seed, data=Samples, **options):
    with isolate_rng():
        seed_everything(seed, verbose=False)
        module, its = build(**cell), trainer(**options)
        its.fit(module, datamodule=data())
    return module, its
