"""Activations for the export tests, with the operators that each lowering must give, written by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lit_gelu import activations

GELU_ERF = ["Mul", "Div", "Erf", "Add", "Mul"]
GELU_TANH = ["Mul", "Pow", "Mul", "Add", "Mul", "Tanh", "Add", "Mul"]
SHIFTED_ERF = ["Mul", "Sub", "Div", "Erf", "Add", "Mul"]
SIGMOID_GATE = ["Mul", "Sigmoid", "Mul"]
CAUCHY = ["Min", "Mul", "Less", "Div", "Atan", "Neg", "Atan", "Add", "Where", "Mul"]
LAPLACE = ["Mul", "Abs", "Neg", "Exp", "Mul", "Less", "Sub", "Where"]
EXPONENTIAL = ["Relu", "Min", "Exp", "Sub", "Mul", "Add"]


@dataclass(frozen=True)
class Case:
    """One activation and its operators; an empty list for a lowering with no recipe of its own."""

    spec: str
    native: list[str]
    primitives: list[str]
    contrib: list[str]

    def operators(self, lowering: str) -> list[str]:
        """What a site becomes: the lowering's own recipe, else the native one."""
        return getattr(self, lowering) or self.native


CASES = [
    Case("gelu", ["Gelu"], GELU_ERF, ["com.microsoft::Gelu"]),
    Case("gelu(approximate='tanh')", ["Gelu"], GELU_TANH, ["com.microsoft::FastGelu"]),
    Case("gelu(approximate='sigmoid')", SIGMOID_GATE, SIGMOID_GATE, ["com.microsoft::QuickGelu"]),
    Case("zero_identity_map", ["Gelu"], GELU_ERF, ["com.microsoft::Gelu"]),
    Case("gaussian_gelu(sigma=2.5)", ["Div", "Gelu", "Mul"], GELU_ERF, ["Div", "com.microsoft::Gelu", "Mul"]),
    Case("gaussian_gelu(mu=0.5, sigma=0.7)", SHIFTED_ERF, SHIFTED_ERF, []),
    Case("silu", ["Sigmoid", "Mul"], ["Sigmoid", "Mul"], ["com.microsoft::QuickGelu"]),
    Case("swish(beta=1.5)", SIGMOID_GATE, SIGMOID_GATE, ["com.microsoft::QuickGelu"]),
    Case("cdf_linear", ["Gelu"], GELU_ERF, ["com.microsoft::Gelu"]),
    Case("cdf_linear(distribution='logistic')", ["Sigmoid", "Mul"], ["Sigmoid", "Mul"], ["com.microsoft::QuickGelu"]),
    Case("cauchy_linear", CAUCHY, CAUCHY, []),
    Case("laplace_linear", LAPLACE, LAPLACE, []),
    Case("hard_swish", ["HardSwish"], ["Mul", "Add", "Clip", "Mul"], []),
    Case("mish", ["Mish"], ["Min", "Exp", "Add", "Mul", "Add", "Div", "Mul"], []),
    Case("relu", ["Relu"], [], []),
    Case("relu6", ["Clip"], [], []),
    Case("relu2", ["Relu", "Mul"], [], []),
    Case("leaky_relu(negative_slope=0.2)", ["LeakyRelu"], ["Relu", "Min", "Mul", "Add"], []),
    Case("prelu", ["PRelu"], ["Relu", "Min", "Mul", "Add"], []),
    Case("elu(alpha=0.5)", ["Elu"], EXPONENTIAL, []),
    Case("selu", ["Selu"], [*EXPONENTIAL, "Mul"], []),
    Case("celu(alpha=2.0)", ["Celu"], ["Relu", "Min", "Div", "Exp", "Sub", "Mul", "Add"], []),
    Case("sigmoid", ["Sigmoid"], [], []),
    Case("tanh", ["Tanh"], [], []),
    Case("hard_sigmoid", ["HardSigmoid"], ["Mul", "Add", "Clip"], []),
    Case("softplus", ["Softplus"], ["Relu", "Abs", "Neg", "Exp", "Add", "Log", "Add"], []),
    Case(
        "softplus(beta=2.0, threshold=3.0)",
        ["Mul", "Greater", "Softplus", "Div", "Where"],
        ["Mul", "Greater", "Relu", "Abs", "Neg", "Exp", "Add", "Log", "Add", "Div", "Where"],
        [],
    ),
    Case("log_sigmoid", ["Neg", "Softplus", "Neg"], ["Min", "Abs", "Neg", "Exp", "Add", "Log", "Sub"], []),
    Case("hard_mish", ["Mul", "Add", "Clip", "Mul"], [], []),
    Case("clipped_gelu(min=-0.1, max=4.0)", ["Gelu", "Clip"], [*GELU_ERF, "Clip"], ["com.microsoft::Gelu", "Clip"]),
    Case("mega_laplace", ["Sub", "Div", "Erf", "Add", "Mul"], [], []),
    Case("sqrt_softplus", ["Softplus", "Sqrt"], [], []),
    Case(
        "xielu",
        ["Relu", "Min", "Mul", "Tanh", "Mul", "Add", "Mul", "Sub", "Div", "Mul", "Min", "Sub", "Mul", "Add", "Add"],
        [],
        [],
    ),
]  # fmt: skip


class EveryActivation(nn.Module):
    """Each case as a site of its own, on one input: one export shows them all."""

    def __init__(self) -> None:
        super().__init__()
        self.sites = nn.ModuleList([activations.create(case.spec) for case in CASES])
        self.example_input_array = torch.zeros(1, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {f"y{i}": site(x) for i, site in enumerate(self.sites)}


def gelu_net(activation: str = "gelu", seed: int = 0) -> nn.Sequential:
    """A small net with two activations and dropout, in training mode."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 16),
        activations.create(activation),
        nn.Dropout(0.5),
        nn.Linear(16, 16),
        activations.create(activation),
        nn.Linear(16, 3),
    )


class Classifier(LightningModule):
    """`gelu_net` as a LightningModule that says what it takes."""

    def __init__(self):
        super().__init__()
        self.net = gelu_net()
        self.example_input_array = torch.zeros(2, 6)

    def forward(self, features):
        return self.net(features)

    def training_step(self, batch, index):
        return self(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


_ERF = np.vectorize(math.erf, otypes=[np.float64])
GELU_FORMS = {
    "none": lambda x: x * 0.5 * (1 + _ERF(x / math.sqrt(2))),
    "tanh": lambda x: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "sigmoid": lambda x: x / (1 + np.exp(-1.702 * x)),
}


def gelu_net_by_hand(net: nn.Sequential, x: np.ndarray, form: str) -> np.ndarray:
    """The same net in float64 numpy, from the definitions."""
    y = x.astype(np.float64)
    for layer in net:
        if isinstance(layer, nn.Linear):
            y = y @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()
        elif not isinstance(layer, nn.Dropout):
            y = GELU_FORMS[form](y)
    return y


def operators_by_site(path: object) -> dict[str, list[str]]:
    """The operators in a file that belong to each activation site, in order."""
    operators: dict[str, list[str]] = {}
    for node in onnx.load(path).graph.node:
        site = next((p.value for p in node.metadata_props if p.key == "lit_gelu.site"), None)
        if site is not None:
            operators.setdefault(site, []).append(f"{node.domain}::{node.op_type}" if node.domain else node.op_type)
    return operators


class Centred(nn.Module):
    """Its rows see each other, and no size of the file tells."""

    def __init__(self):
        super().__init__()
        self.act = nn.GELU()

    def forward(self, x):
        return self.act(x - x.mean(0))
