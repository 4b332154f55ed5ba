"""Small nets whose full Hessian can be had from torch.func in float64, and closures of their losses."""

import copy
import warnings

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from lit_gelu.curvature.loss import Eigenpair, ParameterLayout

ACTIVATIONS = {
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "hard_swish": nn.Hardswish,
}


class Everything(nn.Module):
    """Embedding tied to the head, LayerNorm, attention, an activation, a frozen and an unused layer."""

    def __init__(self, activation="gelu"):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.norm = nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.hidden = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.activation = ACTIVATIONS[activation]()
        self.unused = nn.Linear(2, 3)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.norm(self.embedding(tokens))
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
            x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(x + self.activation(self.frozen(self.hidden(x))))


def everything(activation="gelu", dtype=torch.float64, seed=0):
    """The net above with a batch: (model, inputs, loss of outputs)."""
    torch.manual_seed(seed)
    model = Everything(activation).to(dtype)
    tokens, targets = torch.randint(0, 5, (3, 4)), torch.randint(0, 5, (12,))
    return model, tokens, lambda outputs: F.cross_entropy(outputs.flatten(0, 1), targets)


def classifier(activation="gelu", inputs=4, hidden=6, classes=3, samples=20, dtype=torch.float64, seed=0):
    """Two layers and a batch: (model, inputs, loss of outputs)."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(inputs, hidden), ACTIVATIONS[activation](), nn.Linear(hidden, classes)).to(dtype)
    x, y = torch.randn(samples, inputs, dtype=dtype), torch.randint(0, classes, (samples,))
    return model, x, lambda outputs: F.cross_entropy(outputs, y)


def named(model):
    return dict(model.named_parameters())


class WrittenOutNorm(nn.LayerNorm):
    """LayerNorm by its formula: torch.func.hessian of torch's own is not symmetric in torch 2.15 (off by half)."""

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight + self.bias


def full_hessian(model, inputs, loss):
    """The Hessian by torch.func.hessian, over the parameters that are trained, in the layout's order."""
    layout = ParameterLayout(named(model))
    model = copy.deepcopy(model)
    for part in model.modules():
        if isinstance(part, nn.LayerNorm):
            part.__class__ = WrittenOutNorm

    def of_vector(vector):
        parts = dict(zip(layout.tensors, layout.split(vector), strict=True))
        return loss(torch.func.functional_call(model, parts, (inputs,), tie_weights=True))

    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*torch.jit.script.*"
        )  # torch's own, on its first forward derivative
        return torch.func.hessian(of_vector)(layout.values())


def symmetric(size, seed=0, shift=0.0):
    """A random symmetric float64 matrix."""
    matrix = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (matrix + matrix.T) / 2 + shift * torch.eye(size, dtype=torch.float64)


def exact_pairs(matrix, count):
    """The eigenpairs that are largest in magnitude, by torch's dense solver."""
    values, vectors = torch.linalg.eigh(matrix)
    order = values.abs().argsort(descending=True)[:count].tolist()
    rows = [(values[number].item(), vectors[:, number]) for number in order]
    return [Eigenpair(value, v, matrix @ v, 0.0, converged=True, products=0, estimate=value) for value, v in rows]
