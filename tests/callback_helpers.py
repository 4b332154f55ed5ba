"""A small net, its data and a quiet Trainer for the tests of the callbacks."""

import csv
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import small_task
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FEATURES, WIDTH, CLASSES = 6, 16, 3


class SmallNet(LightningModule):
    """Two hidden layers with batch normalisation and dropout; records its losses."""

    def __init__(self, activation: type[nn.Module] = nn.ReLU, dropout: float = 0.5) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(
            nn.Linear(FEATURES, WIDTH),
            activation(),
            nn.BatchNorm1d(WIDTH),
            nn.Dropout(dropout),
            nn.Linear(WIDTH, WIDTH),
            activation(),
            nn.Linear(WIDTH, CLASSES),
        )
        self.losses: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.losses.append(loss.item())
        self.log("train_loss", loss)
        return loss

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        x, y = batch
        self.log("test_loss", nn.functional.cross_entropy(self(x), y))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Drawing(SmallNet):
    """Dropout, and noise out of Python's and NumPy's generators."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return super().training_step((x + random.random() + np.random.random(), y), batch_idx)  # noqa: NPY002

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))


class FunctionalNet(SmallNet):
    """A `SmallNet` with calls of functions instead of modules, and one module called twice."""

    def __init__(self, dropout: float = 0.5, example: Tensor | None = None) -> None:
        super().__init__(dropout=dropout)
        self.act = nn.ReLU()
        self.net[1] = self.net[5] = nn.Identity()
        self.example_input_array = example

    def forward(self, x: Tensor) -> Tensor:
        x = self.net[3](self.net[2](nn.functional.gelu(self.net[0](x))))
        x = self.act(self.net[4](x))
        return self.net[6](self.act(x - 0.1))


def dataset(examples: int = 32, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(examples, FEATURES, generator=generator)
    return TensorDataset(x, torch.randint(CLASSES, (examples,), generator=generator))


def loader(examples: int = 32, batch_size: int = 8) -> DataLoader[Any]:
    return DataLoader(dataset(examples), batch_size=batch_size)


def quiet_trainer(folder: Path, *callbacks: Callback, **options: Any) -> Trainer:
    """A Trainer on the CPU that shows nothing; it logs to CSV unless told otherwise."""
    logger = CSVLogger(folder, name="logs", version="0")
    defaults = {"max_epochs": 2, "logger": logger, "default_root_dir": folder, "num_sanity_val_steps": 0}
    return small_task.quiet_trainer(callbacks=list(callbacks), **(defaults | options))


@contextmanager
def collected_warnings(text: str) -> Iterator[list[str]]:
    """Collect the messages that contain a text; other warnings are none of the test's matter."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
    messages += [str(warning.message) for warning in caught if text in str(warning.message)]


def activations_of(model: nn.Module) -> list[str]:
    """Class names of the two activations of a `SmallNet`."""
    return [type(model.get_submodule(f"net.{number}")).__name__ for number in (1, 5)]


def logged_rows(folder: Path) -> list[dict[str, str]]:
    """What `quiet_trainer` has logged to CSV."""
    with (folder / "logs" / "0" / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


class SaveEachEpoch(Callback):
    """Saves a checkpoint at the end of every epoch, without state of its own in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.save_checkpoint(self.folder / f"epoch{trainer.current_epoch}.ckpt")


class SaveEverywhere(Callback):
    """Saves a checkpoint behind every batch, epoch and validation, named by the number of batches so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, trainer: Trainer, name: str) -> None:
        trainer.save_checkpoint(self.folder / f"{name}{trainer.fit_loop.total_batch_idx + 1}.ckpt")

    def on_train_batch_end(self, trainer: Trainer, *arguments: Any) -> None:
        self.save(trainer, "batch")

    def on_train_epoch_end(self, trainer: Trainer, *arguments: Any) -> None:
        self.save(trainer, "epoch")

    def on_validation_end(self, trainer: Trainer, *arguments: Any) -> None:
        if not trainer.sanity_checking:
            self.save(trainer, "validation")


class Fails(Callback):
    """Raises an error in a call of a hook, by default in the first."""

    def __init__(self, hook: str, error: BaseException, number: int = 1) -> None:
        self.error, self.left = error, number
        setattr(self, hook, self.call)

    def call(self, *arguments: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error


class History(Callback):
    """Keeps a monitor's figures by the number of their step; stands behind it."""

    def __init__(self, monitor: Any) -> None:
        self.monitor, self.figures, self.last = monitor, {}, None

    def on_train_batch_end(self, trainer: Trainer, *arguments: Any) -> None:
        if self.monitor.latest and self.monitor.latest is not self.last:
            self.last = self.figures[trainer.fit_loop.epoch_loop._batches_that_stepped] = self.monitor.latest


class InputKeeper(Callback):
    """Keeps everything that the activations of a `SmallNet` are given in training steps: the tests' own witness."""

    def __init__(self) -> None:
        self.inputs: dict[int, dict[str, list[Tensor]]] = {}

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        kept = self.inputs.setdefault(trainer.global_step, {})

        def keep(name: str) -> Any:
            return lambda module, args: kept.setdefault(name, []).append(args[0].detach().clone())

        self._handles = [
            pl_module.get_submodule(name).register_forward_pre_hook(keep(name)) for name in ("net.1", "net.5")
        ]

    def on_train_batch_end(self, *arguments: Any) -> None:
        for handle in self._handles:
            handle.remove()
