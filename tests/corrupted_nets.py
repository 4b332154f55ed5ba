"""Small nets and their exported files: those that the table of verdicts spoils, and those that have to pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from lit_gelu import activations
from lit_gelu.activations import GatedFFN
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


class Attention(nn.Module):
    """Masked attention and a feed-forward block, with a difference of neighbouring places behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.up, self.act, self.down, self.head = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        h = self.norm(x)
        scores = self.query(h) @ self.key(h).transpose(1, 2) / 8**0.5
        x = x + self.out(scores.masked_fill(keep[:, None] == 0, -1e9).softmax(-1) @ self.value(h))
        x = x + self.down(self.act(self.up(x)))
        return self.head(x[:, 1:] - x[:, :-1])


class Recurrent(nn.Module):
    """An LSTM over a sequence of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.act, self.head = nn.LSTM(4, 6, batch_first=True), nn.SiLU(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.lstm(x)[0]))


class TwoInputs(nn.Module):
    """A similarity of two inputs, and the best match: whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)), nn.Linear(5, 4)

    def forward(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        y = self.image(image) * self.text(text)
        return y, y.argmax(-1)


class Streaming(nn.Module):
    """State in, state out, whose batch is the second axis; and a complex output."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.act = nn.LSTM(4, 6, batch_first=True), nn.GELU()

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        y, (h, c) = self.lstm(x, (h, c))
        return self.act(y), h, c, torch.fft.rfft(y)


class MaskedScores(nn.Module):
    """Fills what is not to be chosen, as language models do with their scores."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 5))

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        return self.net(x).masked_fill(~allowed, torch.finfo(x.dtype).min)


def feed_forward(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), activation, nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def deep_net() -> nn.Module:
    """Rounding grows from layer to layer."""
    layers = [nn.Sequential(nn.Linear(8, 8), activations.create("mish")) for _ in range(12)]
    with torch.no_grad():
        for layer in layers:
            layer[0].weight.mul_(4)
    return nn.Sequential(*layers)


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
    elif name.startswith("attention"):
        net, options = with_biases(Attention()), {"dtype": "fp16"} if name == "attention16" else {}
        keep = torch.ones(2, 6, dtype=torch.int64)
        keep[0, 4:] = 0
        sample = {"x": torch.randn(2, 6, 8), "keep": keep}
        kept = torch.rand(500, 6, generator=generator) < 0.7
        kept[:, 0] = True
        real = (torch.randn(500, 6, 8, generator=generator), kept.long())
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


def _healthy(net: nn.Module, sample: Any, **options: Any) -> tuple[nn.Module, Any, dict[str, Any]]:
    return net.eval(), sample, options


HEALTHY: dict[str, Callable[[], tuple[nn.Module, Any, dict[str, Any]]]] = {
    "GELU, exact": lambda: _healthy(feed_forward(nn.GELU()), torch.zeros(2, 6)),
    "GELU, tanh": lambda: _healthy(feed_forward(nn.GELU("tanh")), torch.zeros(2, 6)),
    "GELU, exported as sigmoid": lambda: _healthy(feed_forward(nn.GELU()), torch.zeros(2, 6), approximate="sigmoid"),
    "GELU of primitives": lambda: _healthy(feed_forward(nn.GELU("tanh")), torch.zeros(2, 6), lowering="primitives"),
    "GELU, contrib": lambda: _healthy(
        feed_forward(nn.GELU("tanh")), torch.zeros(2, 6), target="ort-cpu", lowering="contrib"
    ),
    "GELU in fp16": lambda: _healthy(feed_forward(nn.GELU()), torch.zeros(2, 6), target="ort-cpu", dtype="fp16"),
    "gated feed-forward": lambda: _healthy(GatedFFN(8, 12), torch.randn(2, 5, 8)),
    "gated feed-forward for CUDA in fp16": lambda: _healthy(
        GatedFFN(8, 12), torch.randn(2, 5, 8), target="ort-cuda", dtype="fp16"
    ),
    "LSTM of any length": lambda: _healthy(Recurrent(), torch.randn(2, 5, 4), dynamic_shapes={"x": {1: "time"}}),
    "states and complex numbers": lambda: _healthy(
        Streaming(),
        (torch.randn(3, 5, 4), torch.randn(1, 3, 6), torch.randn(1, 3, 6)),
        dynamic_shapes={"h": {1: "batch"}, "c": {1: "batch"}},
    ),
    "two inputs and whole numbers": lambda: _healthy(TwoInputs(), (torch.randn(2, 6), torch.randn(2, 5))),
    "softmax in the file": lambda: _healthy(feed_forward(nn.GELU()), torch.zeros(2, 6), softmax=True),
    "fills": lambda: _healthy(MaskedScores(), {"x": torch.randn(2, 5), "allowed": torch.ones(2, 5, dtype=torch.bool)}),
    "a deep net": lambda: _healthy(deep_net(), torch.randn(2, 8)),
    "convolutions of any length": lambda: _healthy(
        nn.Sequential(nn.Conv1d(4, 8, 5), nn.GELU(), nn.BatchNorm1d(8), nn.AdaptiveAvgPool1d(1), nn.Flatten()),
        torch.randn(2, 4, 20),
        dynamic_shapes={"input": {2: "time"}},
    ),
    "float64": lambda: _healthy(feed_forward(nn.GELU()).double(), torch.zeros(2, 6, dtype=torch.float64)),
}
"""Nets whose files are right: module, sample and the export's options."""


def checked_healthy(name: str, folder: Path) -> Any:
    """Export one of them, and return its proof."""
    torch.manual_seed(0)
    net, sample, options = HEALTHY[name]()
    path = folder / "healthy.onnx"
    export_onnx(net, path, sample, **options)
    return check_parity(net, path, input_sample=sample, strict=False)
