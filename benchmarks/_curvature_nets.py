"""The nets and the data that ``curvature.py`` trains: a GPT on the source code of Python's library, MNIST, CIFAR-10."""

import argparse
import inspect
import os
from dataclasses import dataclass

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu.data import CIFAR10Data, DigitsData, MNISTData
from lit_gelu.tasks import CIFAR10ConvNet, MNISTClassifier

BYTES = 256

Net = tuple[str, LightningModule, LightningDataModule]
"""Its name, the model and its data."""


@dataclass(frozen=True)
class GPTSize:
    """How large a GPT is, and its batches.

    Attributes:
        blocks: How many blocks.
        width: Size of a token's vector; the MLP's hidden layer has four times as many.
        heads: Of the attention.
        length: Tokens of an example.
        batch: Examples of a batch.
    """

    blocks: int
    width: int
    heads: int
    length: int
    batch: int


class Block(nn.Module):
    """Attention and an MLP with GELU, each behind a layer normalisation and beside a residual connection.

    Args:
        size: The GPT's.
    """

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.qkv, self.merge = nn.Linear(size.width, 3 * size.width), nn.Linear(size.width, size.width)
        self.mlp = nn.Sequential(
            nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, of the input's shape ``[batch, length, width]``."""
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.merge(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))


class GPT(LightningModule):
    """A decoder over bytes that predicts the next one.

    Args:
        size: Its size.
        learning_rate: AdamW's.
    """

    def __init__(self, size: GPTSize, learning_rate: float = 1e-3) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.token = nn.Embedding(BYTES, size.width)
        self.position = nn.Parameter(0.02 * torch.randn(size.length, size.width))
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.blocks)))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, BYTES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, one row a token of the flattened batch."""
        return self.head(self.norm(self.blocks(self.token(tokens) + self.position))).flatten(0, 1)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean cross-entropy."""
        tokens, following = batch
        return F.cross_entropy(self(tokens), following.flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)


class SourceCode(LightningDataModule):
    """The source of Python's argparse as a text to learn: real, and on every machine.

    Args:
        size: Of the GPT that reads it.
        batches: How many batches an epoch has.
    """

    def __init__(self, size: GPTSize, batches: int) -> None:
        super().__init__()
        self.size, self.batches = size, batches

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Return examples from random places, always the same ones."""
        text = torch.frombuffer(bytearray(inspect.getsource(argparse).encode()), dtype=torch.uint8).long()
        count = self.batches * self.size.batch
        starts = torch.randint(len(text) - self.size.length, (count,), generator=torch.Generator().manual_seed(0))
        windows = text[starts[:, None] + torch.arange(self.size.length + 1)]
        return DataLoader(TensorDataset(windows[:, :-1], windows[:, 1:]), batch_size=self.size.batch)


def gpt(size: GPTSize, batches: int) -> tuple[LightningModule, LightningDataModule]:
    """Return a GPT and its text.

    Args:
        size: Its size.
        batches: How many batches an epoch has.

    Returns:
        Model and data.
    """
    torch.manual_seed(0)
    return GPT(size), SourceCode(size, batches)


def mnist() -> tuple[str, LightningModule, LightningDataModule]:
    """Return the paper's MNIST classifier, with real MNIST if ``LIT_GELU_DATA`` names its folder, else with digits.

    Returns:
        The data's name, model and data.
    """
    torch.manual_seed(0)
    if os.environ.get("LIT_GELU_DATA"):
        return "MNIST", MNISTClassifier("gelu"), MNISTData()
    return "bundled digits (LIT_GELU_DATA is not set)", MNISTClassifier("gelu"), DigitsData(batch_size=128)


def cifar10() -> tuple[LightningModule, LightningDataModule] | None:
    """Return the paper's CIFAR-10 net with a third of its channels, and the first 12,800 images, not whitened.

    Returns:
        Model and data; ``None`` if ``LIT_GELU_DATA`` is not set.
    """
    if not os.environ.get("LIT_GELU_DATA"):
        return None
    torch.manual_seed(0)
    return CIFAR10ConvNet("gelu", channels=(32, 64)), CIFAR10Data(batch_size=64, whiten=False, train_samples=12_800)
