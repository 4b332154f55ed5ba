"""Gated linear units after Shazeer 2020; `torch.nn.GLU` is the one before them."""

import functools

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.functional.gated import halves
from lit_gelu.activations.modules.channels import positive_number
from lit_gelu.activations.modules.gelu import sigmoid_gelu
from lit_gelu.activations.modules.memory import checked_memory, compute
from lit_gelu.activations.modules.swish import swish

GELU_FORMS = ("none", "tanh", "sigmoid")


def _reglu(x: Tensor, dim: int) -> Tensor:
    gate, value = halves("reglu", x, dim)
    return F.relu(gate) * value


def _geglu(x: Tensor, dim: int, approximate: str) -> Tensor:
    gate, value = halves("geglu", x, dim)
    gelu = sigmoid_gelu(gate) if approximate == "sigmoid" else F.gelu(gate, approximate=approximate)
    return gelu * value


def _swiglu(x: Tensor, dim: int, beta: float) -> Tensor:
    gate, value = halves("swiglu", x, dim)
    return (F.silu(gate) if beta == 1.0 else swish(gate, beta)) * value


class ReGLU(nn.Module):
    """``max(first half, 0) * second half`` of a dimension, which is halved.

    Bytes kept for the backward pass, for each float32 element of ``x``: 6, as torch's multiplication keeps the gate and
    the value; 4 with ``memory="recompute"``.

    Source: Shazeer 2020, "GLU Variants Improve Transformer" (arXiv 2002.05202), equation 5.

    Args:
        dim: Which dimension is halved.
        memory: ``"recompute"`` keeps ``x`` alone for the backward pass; ``"autograd"`` what the kernels need.

    Raises:
        ActivationArgumentError: If ``memory`` is no mode.

    Example:
        >>> import torch
        >>> ReGLU()(torch.tensor([2.0, -3.0, 5.0, 7.0]))
        tensor([10.,  0.])
    """

    def __init__(self, dim: int = -1, memory: str = "autograd") -> None:
        super().__init__()
        self.dim = dim
        self.memory = checked_memory(memory)

    def forward(self, x: Tensor) -> Tensor:
        """Gate one half by the other.

        Args:
            x: Any shape with an even size in ``dim``, any floating dtype.

        Returns:
            A tensor like ``x``, half as long in ``dim``.
        """
        return compute(self.memory, functools.partial(_reglu, dim=self.dim), x)

    def extra_repr(self) -> str:
        """Return the arguments for ``repr``.

        Returns:
            ``dim=...``.
        """
        return f"dim={self.dim}{_memory_text(self.memory)}"


class GEGLU(nn.Module):
    """``gelu(first half) * second half`` of a dimension, which is halved.

    Bytes kept for the backward pass, for each float32 element of ``x``: 6 (8 with ``approximate="sigmoid"``); 4 with
    ``memory="recompute"``.

    Source: Shazeer 2020, "GLU Variants Improve Transformer" (arXiv 2002.05202), equation 5.

    Args:
        dim: Which dimension is halved.
        approximate: Which form of GELU: ``"none"``, ``"tanh"`` or ``"sigmoid"``.
        memory: ``"recompute"`` keeps ``x`` alone for the backward pass; ``"autograd"`` what the kernels need.

    Raises:
        ActivationArgumentError: If ``approximate`` is no form of GELU, or ``memory`` no mode.

    Example:
        >>> import torch
        >>> GEGLU()(torch.tensor([1.0, 2.0]))
        tensor([1.6827])
    """

    def __init__(self, dim: int = -1, approximate: str = "none", memory: str = "autograd") -> None:
        super().__init__()
        if approximate not in GELU_FORMS:
            raise ActivationArgumentError(
                f"approximate={approximate!r} is not a form of GELU. Use one of {', '.join(map(repr, GELU_FORMS))}."
            )
        self.dim = dim
        self.approximate = approximate
        self.memory = checked_memory(memory)

    def forward(self, x: Tensor) -> Tensor:
        """Gate one half by the other.

        Args:
            x: Any shape with an even size in ``dim``, any floating dtype.

        Returns:
            A tensor like ``x``, half as long in ``dim``.
        """
        return compute(self.memory, functools.partial(_geglu, dim=self.dim, approximate=self.approximate), x)

    def extra_repr(self) -> str:
        """Return the arguments for ``repr``.

        Returns:
            ``dim=..., approximate=...``.
        """
        return f"dim={self.dim}, approximate={self.approximate!r}{_memory_text(self.memory)}"


class SwiGLU(nn.Module):
    """``swish(first half) * second half`` of a dimension, which is halved.

    Bytes kept for the backward pass, for each float32 element of ``x``: 6 (8 with ``beta`` not 1); 4 with
    ``memory="recompute"``.

    Source: Shazeer 2020, "GLU Variants Improve Transformer" (arXiv 2002.05202), equation 5.

    Args:
        dim: Which dimension is halved.
        beta: The slope of Swish; positive.
        memory: ``"recompute"`` keeps ``x`` alone for the backward pass; ``"autograd"`` what the kernels need.

    Raises:
        ActivationArgumentError: If ``beta`` is not a positive number, or ``memory`` no mode.

    Example:
        >>> import torch
        >>> SwiGLU()(torch.tensor([1.0, 2.0]))
        tensor([1.4621])
    """

    def __init__(self, dim: int = -1, beta: float = 1.0, memory: str = "autograd") -> None:
        super().__init__()
        self.dim = dim
        self.beta = positive_number("beta", beta)
        self.memory = checked_memory(memory)

    def forward(self, x: Tensor) -> Tensor:
        """Gate one half by the other.

        Args:
            x: Any shape with an even size in ``dim``, any floating dtype.

        Returns:
            A tensor like ``x``, half as long in ``dim``.
        """
        return compute(self.memory, functools.partial(_swiglu, dim=self.dim, beta=self.beta), x)

    def extra_repr(self) -> str:
        """Return the arguments for ``repr``.

        Returns:
            ``dim=..., beta=...``.
        """
        return f"dim={self.dim}, beta={self.beta}{_memory_text(self.memory)}"


def _memory_text(memory: str) -> str:
    """Return what ``repr`` says of a memory mode: nothing of the usual one."""
    return "" if memory == "autograd" else f", memory={memory!r}"
