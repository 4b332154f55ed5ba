"""Which activation for a net of one's own, on real digits: ``python examples/choose_activation.py``.

MNIST where ``LIT_GELU_DATA`` names a folder that holds it (some minutes on a CPU), else scikit-learn's bundled digits
(less). Writes runs/choose_activation: choice.json, a picture, the best run as best.ckpt.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional

import lit_gelu as lg
from lit_gelu.choose import choose
from lit_gelu.data import DigitsData, InMemoryDataModule, MNISTData


class SmallConvNet(LightningModule):
    """Two convolutions and a linear layer, with an activation by name."""

    def __init__(self, activation: str = "relu", width: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 5, stride=2),
            lg.activations.create(activation),
            nn.Conv2d(width, 2 * width, 5, stride=2),
            lg.activations.create(activation),
            nn.Flatten(),
            nn.Linear(2 * width * 16, 10),
        )
        self.example_input_array = torch.zeros(2, 1, 28, 28)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.net(images)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:  # noqa: ARG002 - Lightning's names
        """Return the loss."""
        images, labels = batch
        return functional.cross_entropy(self(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:  # noqa: ARG002
        """Log the accuracy."""
        images, labels = batch
        self.log("val_acc", (self(images).argmax(dim=1) == labels).float().mean(), batch_size=len(labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), 2e-3)


def data() -> InMemoryDataModule:
    """Return MNIST if it is there, else the bundled digits."""
    root = os.environ.get("LIT_GELU_DATA", "")
    return MNISTData(batch_size=128) if root and (Path(root) / "MNIST").is_dir() else DigitsData()


def main() -> None:
    """Compare four activations, and print what is decided."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)  # a line for what is finished
    choice = choose(
        SmallConvNet,
        ["gelu", "silu", "relu", "sigmoid"],
        data(),
        seeds=options.seeds,
        max_epochs=options.epochs,
        metric="val_acc",
        baseline="relu",
        folder="runs/choose_activation",
    )
    print(choice)
    print(f"{choice.folder}: {', '.join(choice.files.values())}")


if __name__ == "__main__":
    main()
