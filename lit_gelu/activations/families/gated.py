"""Gated linear units: one half of a dimension, through an activation, times the other half.

Which half is the gate differs, as the sources do: in `glu` it is the second one (torch's ``F.glu``, after Dauphin et
al. 2017), in `reglu`, `geglu` and `swiglu` the first (Shazeer 2020, whose ``x W`` is gated and stands before ``x V``).

They are functions of two numbers: f' and f'' have no meaning for them, and there is none here.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.families.gelu import check_form, gelu, sigmoid_gelu_by_torch
from lit_gelu.activations.families.piecewise_linear import relu
from lit_gelu.activations.families.sigmoid import sigmoid
from lit_gelu.activations.families.swish import swish, swish_by_torch
from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts
from lit_gelu.activations.numerics.arguments import elementwise, one_node
from lit_gelu.activations.numerics.channels import finite_number
from lit_gelu.errors import ArgumentError
from lit_gelu.memory import checked_memory, compute, memory_text


@elementwise
def glu(x: Tensor, dim: int = -1) -> Tensor:
    """Gated linear unit: the first half times ``sigmoid`` of the second, as ``torch.nn.functional.glu``.

    Source: Dauphin et al. 2017, "Language Modeling with Gated Convolutional Networks" (arXiv 1612.08083), equation 1.

    Args:
        x: Any shape with an even size in ``dim``; float16, bfloat16, float32 or float64.
        dim: Which dimension is halved.

    Returns:
        A tensor like ``x``, half as long in ``dim``.

    Raises:
        ArgumentError: If ``x`` is not a floating tensor, or ``dim`` not a dimension of even size.

    Example:
        >>> import torch
        >>> glu(torch.tensor([2.0, 3.0, 0.0, -1.0]))
        tensor([1.0000, 0.8068])
    """
    value, gate = halves("glu", x, dim)
    return value * sigmoid(gate)


@elementwise
def reglu(x: Tensor, dim: int = -1) -> Tensor:
    """Return ``max(first half, 0)`` times the second half: the ReLU-gated linear unit.

    Source: Shazeer 2020, "GLU Variants Improve Transformer" (arXiv 2002.05202), equation 5.

    Arguments and errors are those of `glu`.

    Example:
        >>> import torch
        >>> reglu(torch.tensor([2.0, -3.0, 5.0, 7.0]))
        tensor([10.,  0.])
    """
    gate, value = halves("reglu", x, dim)
    return relu(gate) * value


@elementwise
def geglu(x: Tensor, dim: int = -1, approximate: str = "none") -> Tensor:
    """Return `gelu` of the first half times the second half: the GELU-gated linear unit.

    Source: Shazeer 2020 (arXiv 2002.05202), equation 5.

    Arguments and errors are those of `glu`; ``approximate`` is that of `gelu`.

    Example:
        >>> import torch
        >>> geglu(torch.tensor([1.0, 2.0]))
        tensor([1.6827])
    """
    gate, value = halves("geglu", x, dim)
    return gelu(gate, approximate) * value


@elementwise
def swiglu(x: Tensor, dim: int = -1, beta: float = 1.0) -> Tensor:
    """Return `swish` of the first half times the second half: the Swish-gated linear unit.

    Source: Shazeer 2020 (arXiv 2002.05202), equation 5; with ``beta = 1`` it is the one in LLaMA.

    Arguments and errors are those of `glu`; ``beta`` is the slope of Swish.

    Example:
        >>> import torch
        >>> swiglu(torch.tensor([1.0, 2.0]))
        tensor([1.4621])
    """
    gate, value = halves("swiglu", x, dim)
    return swish(gate, beta) * value


@one_node
def halves(name: str, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the two halves of a dimension."""
    if not -x.dim() <= dim < x.dim() or x.shape[dim] % 2:
        raise ArgumentError(
            f"{name}: dim={dim} of x with shape {tuple(x.shape)} cannot be halved. Give a dimension of even size: the "
            "layer before has twice as many outputs as the layer after has inputs."
        )
    first, second = x.chunk(2, dim)
    return first, second


def _reglu(x: Tensor, dim: int) -> Tensor:
    gate, value = halves("reglu", x, dim)
    return F.relu(gate) * value


def _geglu(x: Tensor, dim: int, approximate: str) -> Tensor:
    gate, value = halves("geglu", x, dim)
    gelu = sigmoid_gelu_by_torch(gate) if approximate == "sigmoid" else F.gelu(gate, approximate=approximate)
    return gelu * value


def _swiglu(x: Tensor, dim: int, beta: float) -> Tensor:
    gate, value = halves("swiglu", x, dim)
    return (F.silu(gate) if beta == 1.0 else swish_by_torch(gate, beta)) * value


class _Halving(nn.Module):
    """What the gated functions have in common as modules: ``function`` of the input and of attributes."""

    def __init__(self, function: Callable[..., Tensor], memory: str, **arguments: Any) -> None:
        super().__init__()
        self._function, self._names = function, tuple(arguments)
        for name, value in arguments.items():
            setattr(self, name, value)
        self.memory = checked_memory(memory)

    def forward(self, x: Tensor) -> Tensor:
        """Gate one half of ``dim``, of even size, by the other; the result is half as long there."""
        arguments = {name: getattr(self, name) for name in self._names}
        return compute(self.memory, functools.partial(self._function, **arguments), x)

    def extra_repr(self) -> str:
        """Return the arguments for ``repr``."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self._names) + memory_text(self.memory)


class ReGLU(_Halving):
    """``max(first half, 0) * second half`` of a dimension, which is halved.

    Bytes kept for the backward pass, for each float32 element of ``x``: 6, as torch's multiplication keeps the gate and
    the value; 4 with ``memory="recompute"``.

    Args:
        dim: Which dimension is halved.
        memory: ``"recompute"`` keeps ``x`` alone for the backward pass; ``"autograd"`` what torch's functions need.

    Example:
        >>> import torch
        >>> ReGLU()(torch.tensor([2.0, -3.0, 5.0, 7.0]))
        tensor([10.,  0.])
    """

    def __init__(self, dim: int = -1, memory: str = "autograd") -> None:
        super().__init__(_reglu, memory, dim=dim)


class GEGLU(_Halving):
    """``gelu(first half) * second half`` of a dimension, which is halved.

    Bytes kept for the backward pass, for each float32 element of ``x``: 6 (8 with ``approximate="sigmoid"``); 4 with
    ``memory="recompute"``.

    Args:
        dim: Which dimension is halved.
        approximate: Which form of GELU: ``"none"``, ``"tanh"`` or ``"sigmoid"``.
        memory: As in `ReGLU`.

    Example:
        >>> import torch
        >>> GEGLU()(torch.tensor([1.0, 2.0]))
        tensor([1.6827])
    """

    def __init__(self, dim: int = -1, approximate: str = "none", memory: str = "autograd") -> None:
        check_form("geglu", approximate)
        super().__init__(_geglu, memory, dim=dim, approximate=approximate)


class SwiGLU(_Halving):
    """``swish(first half) * second half`` of a dimension, which is halved.

    Bytes kept for the backward pass, for each float32 element of ``x``: 6 (8 with ``beta`` not 1); 4 with
    ``memory="recompute"``.

    Args:
        dim: Which dimension is halved.
        beta: The slope of Swish; positive.
        memory: As in `ReGLU`.

    Example:
        >>> import torch
        >>> SwiGLU()(torch.tensor([1.0, 2.0]))
        tensor([1.4621])
    """

    def __init__(self, dim: int = -1, beta: float = 1.0, memory: str = "autograd") -> None:
        super().__init__(_swiglu, memory, dim=dim, beta=finite_number("beta", beta, positive=True))


SHAZEER_2020 = "Shazeer 2020, GLU Variants Improve Transformer (arXiv 2002.05202)"


def _facts(formula: str, reference: str = SHAZEER_2020, smoothness: float = math.inf) -> ActivationFacts:
    return ActivationFacts(formula, reference, smoothness=smoothness, elementwise=False, halves=True)


ENTRIES = (
    ActivationEntry(
        "glu",
        nn.GLU,
        function=glu,
        facts=_facts(
            "a sigmoid(b), with a the first half and b the second",
            "Dauphin et al. 2017, Language Modeling with Gated Convolutional Networks (arXiv 1612.08083)",
        ),
        functions=(F.glu,),
    ),
    ActivationEntry(
        "reglu",
        ReGLU,
        function=reglu,
        facts=_facts("max(a, 0) b, with a the first half and b the second", smoothness=0),
    ),
    ActivationEntry("geglu", GEGLU, function=geglu, facts=_facts("gelu(a) b, with a the first half and b the second")),
    ActivationEntry(
        "swiglu", SwiGLU, function=swiglu, facts=_facts("a sigmoid(beta a) b, with a the first half and b the second")
    ),
)
