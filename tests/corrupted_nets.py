"""Six small nets and their exported files, which the table of corruptions spoils."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from lit_gelu.export import check_parity, export_onnx
from lit_gelu.export.quantization import check_quantized, quantize_onnx
from lit_gelu.tasks import MNISTClassifier

CLASSES = ["one", "two", "three", "four", "five"]


class Tokens(nn.Module):
    """Words with a mask, and five classes."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(40, 12), nn.Linear(12, 24)
        self.act, self.head = nn.GELU("tanh"), nn.Linear(24, len(CLASSES))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        kept = attention_mask.unsqueeze(-1).float()
        hidden = self.act(self.mix(self.words(input_ids))) * kept
        return {"logits": self.head(hidden.sum(1) / kept.sum(1)), "hidden": hidden}


class Scales(nn.Module):
    """Columns of three sizes, and an output beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.act = nn.Linear(8, 16), nn.SiLU()
        self.head, self.side = nn.Linear(16, 3), nn.Linear(16, 2)
        self.register_buffer("sizes", torch.tensor([1e4, 1.0, 1e-2]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.act(self.body(x))
        return self.head(hidden) * self.sizes, 1e-3 * self.side(hidden)


def batch_norm_net() -> nn.Module:
    """Batch normalisation behind an activation, where no weights in front can take it in."""
    net = nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.GELU(), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 3), nn.ELU(), nn.Flatten(), nn.Linear(16, 3)
    )
    with torch.no_grad():
        for buffer in (net[2].running_mean, net[2].weight, net[2].bias):
            buffer.normal_(0.5, 0.5)
        net[2].running_var.uniform_(0.2, 2)
    return net


def dense_net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))


def with_biases(net: nn.Module) -> nn.Module:
    """Give all biases values, since those that are zero are not in the file."""
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.1)
    return net


@dataclass(frozen=True)
class Exported:
    """A net, its file, and inputs that the gate has not seen.

    Args:
        net: The module.
        graph: The file, as it was exported.
        sample: What it was traced with.
        real: Inputs such as those that the net is for.
        check: Compares a file with the net; returns the report.
    """

    net: nn.Module
    graph: onnx.ModelProto
    sample: Any
    real: tuple[Tensor, ...]
    check: Callable[[Path], Any]


def exported(name: str, folder: Path) -> Exported:
    """Build one of the nets and export it."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    path = folder / f"{name}.onnx"
    if name == "int8":
        return _int8(path, generator)
    net: nn.Module
    options: dict[str, Any] = {}
    sample: Any
    if name.startswith("mnist"):
        net = with_biases(MNISTClassifier(activation="gelu(approximate='tanh')", hidden_layers=2))
        sample = torch.rand(4, 784)
        real = (torch.rand(500, 784, generator=generator),)
        options = {"dtype": "fp16"} if name == "mnist16" else {}
    elif name == "tokens":
        net, options = Tokens(), {"labels": CLASSES}
        sample = {"input_ids": torch.tensor([[1, 2, 3, 4]]), "attention_mask": torch.ones(1, 4, dtype=torch.int64)}
        mask = torch.rand(500, 4, generator=generator) < 0.7
        mask[:, 0] = True
        real = (torch.randint(40, (500, 4), generator=generator), mask.long())
    elif name == "scales":
        net, sample = Scales(), torch.randn(3, 8)
        real = (torch.randn(500, 8, generator=generator),)
    else:
        net, sample = batch_norm_net(), torch.randn(2, 2, 6, 6)
        real = (torch.randn(500, 2, 6, 6, generator=generator),)
    export_onnx(net, path, sample, **options)
    return Exported(
        net.eval(), onnx.load(path), sample, real, lambda p: check_parity(net, p, input_sample=sample, strict=False)
    )


def _int8(path: Path, generator: torch.Generator) -> Exported:
    """Build the int8 file, which is compared on data."""
    net, sample = dense_net(), torch.zeros(2, 64)
    float_path = path.with_name("float.onnx")
    export_onnx(net, float_path, sample)
    rows = torch.randn(900, 64, generator=generator)
    quantize_onnx(float_path, path, rows[:200])
    return Exported(
        net.eval(),
        onnx.load(path),
        sample,
        (rows[400:],),
        lambda p: check_quantized(net, p, rows[200:400], sample, max_difference=0.05, strict=False),
    )
