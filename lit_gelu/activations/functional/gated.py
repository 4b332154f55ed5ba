"""Gated linear units: one half of a dimension, through an activation, times the other half.

Which half is the gate differs, as the sources do: in `glu` it is the second one (torch's ``F.glu``, after Dauphin et
al. 2017), in `reglu`, `geglu` and `swiglu` the first (Shazeer 2020, whose ``x W`` is gated and stands before ``x V``).

They are functions of two numbers: f' and f'' have no meaning for them, and there is none here.
"""

from torch import Tensor

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.functional._arguments import elementwise
from lit_gelu.activations.functional.gelu import gelu
from lit_gelu.activations.functional.piecewise_linear import relu
from lit_gelu.activations.functional.sigmoid import sigmoid
from lit_gelu.activations.functional.swish import swish


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
        ActivationArgumentError: If ``x`` is not a floating tensor, or ``dim`` not a dimension of even size.

    Example:
        >>> import torch
        >>> glu(torch.tensor([2.0, 3.0, 0.0, -1.0]))
        tensor([1.0000, 0.8068])
    """
    value, gate = halves("glu", x, dim)
    return value * sigmoid(gate)


@elementwise
def reglu(x: Tensor, dim: int = -1) -> Tensor:
    """ReLU-gated linear unit: ``max(first half, 0)`` times the second half.

    Source: Shazeer 2020, "GLU Variants Improve Transformer" (arXiv 2002.05202), equation 5.

    Args:
        x: Any shape with an even size in ``dim``; float16, bfloat16, float32 or float64.
        dim: Which dimension is halved.

    Returns:
        A tensor like ``x``, half as long in ``dim``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor, or ``dim`` not a dimension of even size.

    Example:
        >>> import torch
        >>> reglu(torch.tensor([2.0, -3.0, 5.0, 7.0]))
        tensor([10.,  0.])
    """
    gate, value = halves("reglu", x, dim)
    return relu(gate) * value


@elementwise
def geglu(x: Tensor, dim: int = -1, approximate: str = "none") -> Tensor:
    """GELU-gated linear unit: `gelu` of the first half times the second half.

    Source: Shazeer 2020 (arXiv 2002.05202), equation 5.

    Args:
        x: Any shape with an even size in ``dim``; float16, bfloat16, float32 or float64.
        dim: Which dimension is halved.
        approximate: Which form of GELU: ``"none"``, ``"tanh"`` or ``"sigmoid"``.

    Returns:
        A tensor like ``x``, half as long in ``dim``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor, ``dim`` not a dimension of even size, or
            ``approximate`` not one of the three.

    Example:
        >>> import torch
        >>> geglu(torch.tensor([1.0, 2.0]))
        tensor([1.6827])
    """
    gate, value = halves("geglu", x, dim)
    return gelu(gate, approximate) * value


@elementwise
def swiglu(x: Tensor, dim: int = -1, beta: float = 1.0) -> Tensor:
    """Swish-gated linear unit: `swish` of the first half times the second half.

    Source: Shazeer 2020 (arXiv 2002.05202), equation 5; with ``beta = 1`` it is the one in LLaMA.

    Args:
        x: Any shape with an even size in ``dim``; float16, bfloat16, float32 or float64.
        dim: Which dimension is halved.
        beta: The slope of Swish.

    Returns:
        A tensor like ``x``, half as long in ``dim``.

    Raises:
        ActivationArgumentError: If ``x`` is not a floating tensor, or ``dim`` not a dimension of even size.

    Example:
        >>> import torch
        >>> swiglu(torch.tensor([1.0, 2.0]))
        tensor([1.4621])
    """
    gate, value = halves("swiglu", x, dim)
    return swish(gate, beta) * value


def halves(name: str, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the two halves of a dimension.

    Args:
        name: The function that was called.
        x: The tensor.
        dim: The dimension.

    Returns:
        The first half and the second, as views.

    Raises:
        ActivationArgumentError: If there is no such dimension or its size is odd.
    """
    if not -x.dim() <= dim < x.dim() or x.shape[dim] % 2:
        raise ActivationArgumentError(
            f"{name}: dim={dim} of x with shape {tuple(x.shape)} cannot be halved. Give a dimension of even size: the "
            "layer before has twice as many outputs as the layer after has inputs."
        )
    first, second = x.chunk(2, dim)
    return first, second
