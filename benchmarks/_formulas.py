"""What a user would write in torch for each activation: torch's own function where it has one, else its definition."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

SQRT_HALF = math.sqrt(0.5)


def _gaussian_gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf((x - 0.5) / 2.0 * SQRT_HALF))


def _laplace_linear(x: Tensor) -> Tensor:
    tail = 0.5 * torch.exp(-x.abs())
    return x * torch.where(x < 0, tail, 1 - tail)


def _xielu(x: Tensor) -> Tensor:
    return torch.where(x > 0, 0.8 * x * x + 0.5 * x, 0.8 * (torch.expm1(x) - x) + 0.5 * x)


FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": torch.clone,
    "relu": F.relu,
    "relu6": F.relu6,
    "relu2": lambda x: F.relu(x).square(),
    "leaky_relu": F.leaky_relu,
    "prelu": lambda x: F.prelu(x, torch.full((1,), 0.25, dtype=x.dtype, device=x.device)),
    "elu": F.elu,
    "selu": F.selu,
    "celu": F.celu,
    "gelu": F.gelu,
    "gelu(approximate='tanh')": lambda x: F.gelu(x, approximate="tanh"),
    "gelu(approximate='sigmoid')": lambda x: x * torch.sigmoid(1.702 * x),
    "clipped_gelu": lambda x: F.gelu(x).clamp(-10.0, 10.0),
    "gaussian_gelu": F.gelu,
    "gaussian_gelu(mu=0.5, sigma=2.0)": _gaussian_gelu,
    "gaussian_gelu(learnable=True, mu=0.5, sigma=2.0)": _gaussian_gelu,
    "zero_identity_map": lambda x: x * (torch.rand_like(x) < 0.5 * (1 + torch.erf(x * SQRT_HALF))),
    "silu": F.silu,
    "swish": F.silu,
    "swish(beta=1.5)": lambda x: x * torch.sigmoid(1.5 * x),
    "swish(beta=1.5, learnable=True)": lambda x: x * torch.sigmoid(1.5 * x),
    "hard_swish": F.hardswish,
    "mish": F.mish,
    "hard_mish": lambda x: 0.5 * x * (x + 2).clamp(0, 2),
    "cdf_linear": F.gelu,
    "cauchy_linear": lambda x: x * (torch.atan(x) / math.pi + 0.5),
    "laplace_linear": _laplace_linear,
    "logistic": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hard_sigmoid": F.hardsigmoid,
    "softplus": F.softplus,
    "sqrt_softplus": lambda x: F.softplus(x).sqrt(),
    "log_sigmoid": F.logsigmoid,
    "mega_laplace": lambda x: 0.5 * (1 + torch.erf((x - 0.707107) / (0.282095 * math.sqrt(2.0)))),
    "xielu": _xielu,
    "glu": F.glu,
    "reglu": lambda x: (lambda a, b: F.relu(a) * b)(*x.chunk(2, -1)),
    "geglu": lambda x: (lambda a, b: F.gelu(a) * b)(*x.chunk(2, -1)),
    "swiglu": lambda x: (lambda a, b: F.silu(a) * b)(*x.chunk(2, -1)),
}
