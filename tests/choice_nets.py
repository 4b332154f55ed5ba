"""Users' own modules and small data, for tests of choosing an activation."""

import os
from types import SimpleNamespace

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from small_task import quiet_trainer
from torch import nn
from torch.nn import functional

from lit_gelu import activations
from lit_gelu.data import InMemoryDataModule
from lit_gelu.data.in_memory import InMemorySamples

CPU = {"accelerator": "cpu"}


class Stripes(InMemoryDataModule):
    """Images 8x8 with stripes in one of two directions and noise: 96 training, 40 validation, 40 test samples."""

    def __init__(self, batch_size=16, noise=1.5, size=8):
        super().__init__(batch_size)
        self.noise, self.size = noise, size

    def _samples(self, seed, count):
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(2, (count,), generator=generator)
        stripes = torch.sin(torch.arange(self.size) * 1.3).expand(count, 1, self.size, self.size)
        images = torch.where(labels[:, None, None, None] == 1, stripes, stripes.transpose(2, 3))
        return InMemorySamples(images + self.noise * torch.randn(images.shape, generator=generator), labels)

    def load_train_and_val(self):
        return self._samples(0, 96), self._samples(1, 40)

    def load_test(self):
        return self._samples(2, 40)


class OrdinaryStripes(LightningDataModule):
    """The same by torch's own loaders: no group can take its batches out of it."""

    def __init__(self):
        super().__init__()
        self.inner = Stripes()

    def setup(self, stage):
        self.inner.setup()
        self.sets = [torch.utils.data.TensorDataset(*s.tensors) for s in (self.inner.train_set, self.inner.val_set)]

    def train_dataloader(self):
        return torch.utils.data.DataLoader(self.sets[0], 16, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(self.sets[1], 16)


class ConvNet(LightningModule):
    """Somebody's convolutional net, with a metric of which more is better."""

    def __init__(self, activation="relu", width=4, rate=3e-3):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3), activations.create(activation), nn.Flatten(), nn.Dropout(0.2), nn.LazyLinear(2)
        )
        self.net(torch.zeros(1, 1, 8, 8))
        self.rate = rate
        self.example_input_array = torch.zeros(2, 1, 8, 8)

    def forward(self, images):
        return self.net(images)

    def training_step(self, batch, index):
        images, labels = batch
        loss = functional.cross_entropy(self(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        images, labels = batch
        logits = self(images)
        self.log("val_acc", (logits.argmax(1) == labels).float().mean())
        self.log("val_loss", functional.cross_entropy(logits, labels))

    def test_step(self, batch, index):
        images, labels = batch
        self.log("test_acc", (self(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.rate)


class FixedNet(ConvNet):
    """The same with an activation that nobody can name: only a swap brings in others."""

    def __init__(self):
        super().__init__("relu")


class Scheduled(ConvNet):
    """The same with a schedule of its learning rate."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def explodes(x):
    """Return what no training survives."""
    return x * float("inf")


class Breaks(nn.Module):
    """An activation that fails in training alone."""

    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            raise RuntimeError("it broke\nand this is its second line")
        return x.relu()


def by_hand(build, activation, seed, data, max_epochs, test=False, **options):
    """Make one run as anybody would, and return what it logged at its end, its weights and its module."""
    seed_everything(seed, verbose=False)
    module = build() if activation is None else build(activation=activation)
    trainer: Trainer = quiet_trainer(max_epochs=max_epochs, **options)
    trainer.fit(module, datamodule=data)
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    if test:
        logged |= trainer.test(module, datamodule=data, verbose=False)[0]
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        os.environ.pop(name, None)
    return SimpleNamespace(logged=logged, weights=module.state_dict(), module=module)


def check_by_hand(choice, build, data, metric, epochs, rounding=0.0, **options):
    """Compare every run with the same run made by hand, and the best one's weights."""
    for candidate in choice.candidates:
        for run in candidate.runs:
            alone = by_hand(build, candidate.label, run.seed, data, epochs, **CPU, **options)
            assert abs(run.value(choice.metric) - alone.logged[metric]) <= rounding * abs(alone.logged[metric])
            if run is choice.best_run:
                torch.testing.assert_close(choice.module.state_dict(), alone.weights, rtol=rounding, atol=10 * rounding)
