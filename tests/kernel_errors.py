"""How far functions in 16 bits are from float64, over every input: of kernels, of formulas, of torch's own."""

import math
from collections.abc import Callable

import kernel_oracles as oracles
import numpy as np
import torch
from kernel_cases import DTYPES, FUNCTIONS, every_input
from kernel_oracles import Array
from torch import Tensor
from torch.nn import functional as F

from lit_gelu.activations.gpu import formulas

ORACLES = {
    "gelu": oracles.gelu,
    "gelu_tanh": oracles.gelu_tanh,
    "gelu_sigmoid": oracles.swish(1.702),
    "silu": oracles.swish(1.0),
    "swish": oracles.swish(0.5),
    "mish": oracles.mish,
    "elu": oracles.elu(1.0),
    "elu_half": oracles.elu(0.5),
    "hard_swish": oracles.hard_swish,
    "gaussian_gelu": oracles.gaussian_gelu(-0.5, 2.0),
}
#: The largest slope of all functions is below it: slopes are measured in last places of this number.
LARGEST_SLOPE = 1.13
#: Torch's own functions in float32, as its kernels for CUDA compute 16-bit numbers.
TORCHS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: x * 0.5 * (1.0 + torch.erf(x * math.sqrt(0.5))),
    "gelu_tanh": lambda x: 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))),
    "silu": lambda x: x / (1.0 + torch.exp(-x)),
    "mish": lambda x: x * torch.tanh(torch.log1p(torch.exp(x))),
    "elu": F.elu,
    "hard_swish": lambda x: x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
}


def by_formulas() -> dict[str, Array]:
    """Return values and slopes of the formulas in torch's operations, named as `interpreted_kernels` names them."""
    entries = {}
    for label, dtype in DTYPES.items():
        x = every_input(dtype)
        for key, (name, p0, p1) in FUNCTIONS.items():
            entries[f"{key} {label} value"] = formulas.value(name, x, p0, p1).double().numpy()
            entries[f"{key} {label} slope"] = formulas.slope(name, x, p0, p1).to(dtype).double().numpy()
    return entries


def by_torchs_formulas() -> dict[str, Array]:
    """Return values of torch's own formulas; their slopes are as good as any."""
    return {
        f"{key} {label} value": function(every_input(dtype).float()).to(dtype).double().numpy()
        for label, dtype in DTYPES.items()
        for key, function in TORCHS.items()
    }


def inputs(label: str) -> Array:
    """Return every value of a dtype."""
    found: Array = every_input(DTYPES[label]).double().numpy()
    return found


def exact(key: str, label: str) -> tuple[Array, Array]:
    """Return a function and its slope at every value of a dtype, in float64."""
    with np.errstate(all="ignore"):
        return ORACLES[key](inputs(label))


def spacing(values: Array, label: str) -> Array:
    """Return the distance between neighbours of the dtype at each value; at subnormal ones that of the least."""
    info = torch.finfo(DTYPES[label])
    return info.eps * 2.0 ** np.floor(np.log2(np.maximum(np.abs(values), info.tiny)))


def normal(key: str, label: str) -> Array:
    """Return at which inputs the exact value is a normal number of the dtype."""
    wanted, info = np.abs(exact(key, label)[0]), torch.finfo(DTYPES[label])
    there: Array = np.isfinite(inputs(label)) & (wanted >= info.tiny) & (wanted <= info.max)
    return there


def value_errors(found: Array, key: str, label: str) -> Array:
    """Return errors in units of the last place, wherever the exact value is a normal number of the dtype."""
    where, wanted = normal(key, label), exact(key, label)[0]
    return np.abs(found[where] - wanted[where]) / spacing(wanted[where], label)


def slope_errors(found: Array, key: str, label: str) -> Array:
    """Return errors in units of the last place of `LARGEST_SLOPE`, at finite inputs."""
    x, wanted = inputs(label), exact(key, label)[1]
    read = np.isfinite(x) & ((x == 0) | (np.abs(x) >= torch.finfo(DTYPES[label]).tiny))  # the interpreter flushes
    return np.abs(found[read] - wanted[read]) / spacing(np.array(LARGEST_SLOPE), label)
