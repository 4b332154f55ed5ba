"""Small nets whose optimised graphs the CUDA provider's tests compare, all in one module: one trace shows them all."""

import torch
from torch import nn

from lit_gelu import activations

SPECS = {
    "gelu": "gelu",
    "gelu tanh": "gelu(approximate='tanh')",
    "gelu sigmoid": "gelu(approximate='sigmoid')",
    "learnable gelu": "gaussian_gelu(mu=0.5, sigma=0.7)",
    "silu": "silu",
    "mish": "mish",
    "elu": "elu",
    "softplus": "softplus",
    "hard swish": "hard_swish",
}


class VisionTransformer(nn.Module):
    """Patches, a class token, one block, a head."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.block = encoder()
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        patches = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.block(torch.cat([self.token.expand(x.shape[0], -1, -1), patches], 1))[:, 0])


def encoder():
    return nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True, norm_first=True)


def linear(spec="gelu"):
    return nn.Sequential(nn.Linear(8, 16), activations.create(spec), nn.Linear(16, 8))


def convolutions(spec="gelu"):
    """Two, the first with batch normalisation."""
    first = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), activations.create(spec)]
    return nn.Sequential(*first, nn.Conv2d(8, 8, 3, padding=1), activations.create(spec), nn.Conv2d(8, 4, 1))


class CudaNets(nn.Module):
    """Each net on its own output; what takes the same input shares it."""

    def __init__(self):
        super().__init__()
        self.rows = nn.ModuleDict({"linear": linear(), "linear tanh": linear("gelu(approximate='tanh')")})
        self.rows.update({name: activations.create(spec) for name, spec in SPECS.items()})
        self.sequences = nn.ModuleDict({"linear of sequences": linear(), "encoder": encoder()})
        self.images = nn.ModuleDict({
            "convolutions": convolutions(),
            "convolutions tanh": convolutions("gelu(approximate='tanh')"),
            "vision transformer": VisionTransformer(),
        })  # fmt: skip
        self.signals = nn.ModuleDict({"convolution 1-D": nn.Sequential(nn.Conv1d(3, 8, 3), nn.GELU())})
        sizes = [(2, 8), (2, 5, 8), (2, 3, 8, 8), (2, 3, 9)]
        self.example_input_array = tuple(torch.zeros(size) for size in sizes)

    def forward(self, rows, sequences, images, signals):
        fed = ((self.rows, rows), (self.sequences, sequences), (self.images, images), (self.signals, signals))
        return {name: net(x) for nets, x in fed for name, net in nets.items()}
