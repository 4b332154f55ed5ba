"""A data module as it comes out of the checkpoint of a run on it."""

from pathlib import Path
from typing import TypeVar

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from small_task import quiet_trainer

Data = TypeVar("Data", bound=LightningDataModule)


class OneNumber(LightningModule):
    """Learns nothing from its data."""

    def __init__(self) -> None:
        super().__init__()
        self.number = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch: object, batch_idx: int) -> torch.Tensor:
        return self.number**2

    def validation_step(self, batch: object) -> None: ...

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loaded_from_checkpoint(data: Data, file: Path) -> Data:
    """Train on the data for a step, save a checkpoint, and load a data module of the same class from it."""
    trainer = quiet_trainer(max_steps=1)
    trainer.fit(OneNumber(), datamodule=data)
    trainer.save_checkpoint(file)
    return type(data).load_from_checkpoint(file, weights_only=True)
