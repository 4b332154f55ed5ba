"""Sixteen small nets and their files: each pair of net and options is exported once a session, for all that read it."""

import functools
import math
import tempfile
from pathlib import Path

import torch
from cuda_nets import VisionTransformer, encoder
from export_cases import Centred, EveryActivation, gelu_net
from torch import nn
from torch.nn import functional as F

from lit_gelu import activations
from lit_gelu.export import ExportReport, export_onnx


class Tokens(nn.Module):
    """Mean of embedded tokens with places, where a mask keeps them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(50, 8), nn.Embedding(64, 8)
        self.act, self.head = nn.GELU(), nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask):
        x = self.act(self.words(input_ids) + self.places(torch.arange(input_ids.shape[1])))
        kept = attention_mask.unsqueeze(-1).float()
        return self.head((x * kept).sum(1) / kept.sum(1))


class HandWritten(nn.Module):
    """Activations as formulas and calls."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        x = self.layer(x)
        exact = x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
        tanh = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return exact + tanh + x * torch.sigmoid(1.702 * x) + x / (1 + torch.exp(-x)) + F.mish(x) + torch.special.erfc(x)


class Pools(nn.Module):
    """What onnxruntime's CUDA provider lost with opset 22."""

    def __init__(self):
        super().__init__()
        first = [nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.MaxPool2d(3, 2, 1)]
        second = [nn.Conv2d(8, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.GELU(), nn.MaxPool2d(2), nn.Flatten()]
        self.net = nn.Sequential(*first, *second, nn.Linear(72, 4))

    def forward(self, x):
        return self.net(x)


class TimeSteps(nn.Module):
    """Sines of whole numbers, ahead of a layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, t, x):
        angles = t[:, None].float() * torch.exp(-torch.arange(4) * 0.5)[None]
        return F.gelu(self.layer(torch.cat([angles.sin(), angles.cos()], 1) + x))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x):
        return F.gelu(self.head(self.net(x)[0][:, -1]))


class TwoInputs(nn.Module):
    """Nested inputs and outputs, one argument that is no tensor, one that is optional."""

    def __init__(self):
        super().__init__()
        self.act = nn.GELU()

    def forward(self, image, parts, scale: float = 1.0, *, mask=None):
        gated = self.act(image) * scale + parts["extra"]
        return {"logits": gated if mask is None else gated * mask, "parts": [image + 1]}


class Branches(nn.Module):
    """An activation in each branch of a torch.cond."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.GELU(), nn.SiLU()

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda v: self.first(v), lambda v: self.second(v), (x,))


class GatedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ffn = activations.create("geglu")
        self.layer = nn.Linear(6, 8)

    def forward(self, x):
        return self.ffn(self.layer(x))


def scales():
    """A factor that is a power of two between two layers, and one that is none."""
    layers = [nn.Linear(6, 6), activations.create("gaussian_gelu(sigma=2.0)"), nn.Linear(6, 6)]
    return nn.Sequential(*layers, activations.create("swish(beta=1.5)"), nn.Linear(6, 3))


def convolutions():
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU(), nn.Conv2d(4, 4, 1), nn.Mish()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))


IDS = torch.arange(10).reshape(2, 5)
LENGTH = {"dynamic_shapes": {name: {1: "sequence"} for name in ("input_ids", "attention_mask")}}
EXTRA = {"image": torch.ones(3, 4), "parts": {"extra": torch.ones(3, 4)}, "scale": 2.0, "mask": torch.ones(3, 4)}
# By name: the net, a sample, options of every export of it.
ZOO = {
    "gelu": (gelu_net, torch.zeros(1, 6), {}),
    "every": (EveryActivation, torch.zeros(1, 4), {}),
    "hand": (HandWritten, torch.zeros(2, 6), {}),
    "tokens": (Tokens, {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}, LENGTH),
    "pools": (Pools, torch.zeros(2, 3, 16, 16), {}),
    "convolutions": (convolutions, torch.zeros(2, 3, 8, 6), {"dynamic_shapes": {"input": {2: "height", 3: "width"}}}),
    "steps": (TimeSteps, (torch.arange(2), torch.zeros(2, 8)), {}),
    "recurrent": (Recurrent, torch.zeros(2, 3, 4), {}),
    "encoder": (encoder, torch.zeros(2, 5, 8), {}),
    "vision transformer": (VisionTransformer, torch.zeros(2, 3, 8, 8), {}),
    "scales": (scales, torch.zeros(2, 6), {}),
    "two inputs": (TwoInputs, EXTRA, {}),
    "branches": (Branches, torch.ones(2, 3), {}),
    "gated": (GatedBlock, torch.zeros(2, 6), {}),
    "centred": (Centred, torch.zeros(2, 6), {}),
    "softplus": (lambda: nn.Sequential(nn.Linear(6, 4), nn.Softplus(), nn.ELU()), torch.zeros(2, 6), {}),
}
TARGETS = {
    "portable": {},
    "cuda": {"target": "ort-cuda"},
    "fp16": {"dtype": "fp16"},
    "cuda fp16": {"target": "ort-cuda", "dtype": "fp16"},
    "cuda bf16": {"target": "ort-cuda", "dtype": "bf16"},
}


@functools.cache
def net(name: str) -> nn.Module:
    """A net with weights that are the same in every process."""
    torch.manual_seed(0)
    return ZOO[name][0]().eval()


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="zoo")  # goes with the process


@functools.cache
def exported(name: str, target: str = "portable") -> tuple[ExportReport, Path]:
    """The report and the file of a net for a target; nobody may change the file."""
    path = Path(_folder().name) / f"{name} {target}.onnx"
    _, sample, options = ZOO[name]
    return export_onnx(net(name), path, sample, **options, **TARGETS[target]), path
