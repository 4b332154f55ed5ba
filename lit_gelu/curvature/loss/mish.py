"""A Mish whose second derivative is finite wherever Mish is.

The double backward of torch's `mish` is NaN from x = 89 on in float32 and bfloat16 (12 in float16, 720 in float64):
its formula divides one overflowing exponential by another.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

MISH_NOTE = "torch's mish was computed as x tanh(softplus(x)), since its double backward is NaN for large x"


class ComposedMish(TorchFunctionMode):
    """While active, calls of torch's `mish` compute ``x * tanh(softplus(x))`` from these three functions.

    Their derivatives of every order are finite in both tails. The value is the same up to rounding.

    Source: Misra 2019, "Mish: A Self Regularized Non-Monotonic Activation Function" (arXiv 1908.08681), equation 1.

    Example:
        >>> x = torch.tensor([100.0], requires_grad=True)
        >>> with ComposedMish():
        ...     y = torch.nn.functional.mish(x)
        >>> (slope,) = torch.autograd.grad(y, x, create_graph=True)
        >>> torch.autograd.grad(slope, x)
        (tensor([0.]),)
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace one function and pass the others on."""
        kwargs = kwargs or {}
        if func in {functional.mish, torch._C._nn.mish}:
            return _composed(*args, **kwargs)
        if func is torch._C._nn.mish_:
            return _composed(*args, **{**kwargs, "inplace": True})
        return func(*args, **kwargs)


def _composed(input: Tensor, inplace: bool = False) -> Tensor:  # noqa: A002  # torch's name: it may come as keyword
    """Return Mish of a tensor, composed of functions that can be differentiated any number of times."""
    if inplace:
        x = input.clone()
        return input.copy_(x * torch.tanh(functional.softplus(x)))
    return input * torch.tanh(functional.softplus(input))
