"""The gated functions' definitions in float64, from the papers' equations: value and gate are written out."""

import math

import torch
from torch import Tensor


def _sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def _normal(x: Tensor) -> Tensor:
    return 0.5 * torch.special.erfc(-x / math.sqrt(2))


# From the first half and the second half of a dimension to the result, with the functions' default arguments.
FORMULAS = {
    "glu": lambda first, second: first * _sigmoid(second),
    "reglu": lambda first, second: torch.where(first > 0, first, 0.0) * second,
    "geglu": lambda first, second: first * _normal(first) * second,
    "swiglu": lambda first, second: first * _sigmoid(first) * second,
}

# Specs with other arguments.
VARIANTS = {
    "geglu(approximate='tanh')": lambda a, b: (
        0.5 * a * (1 + torch.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))) * b
    ),
    "geglu(approximate='sigmoid')": lambda a, b: a * _sigmoid(1.702 * a) * b,
    "swiglu(beta=2.5)": lambda a, b: a * _sigmoid(2.5 * a) * b,
    "reglu(memory='recompute')": FORMULAS["reglu"],
    "geglu(memory='recompute')": FORMULAS["geglu"],
    "swiglu(beta=0.5, memory='recompute')": lambda a, b: a * _sigmoid(0.5 * a) * b,
}
