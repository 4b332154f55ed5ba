"""What every function of this folder takes and returns: checks, the dtype it computes in, joint derivatives.

A joint form returns ``f``, ``f'``, ``f''`` and the gate of an activation. Most are exact to the last digit, and the
derivatives come from them (`DerivativeOf`). Those of GELU, Swish and Mish have six digits, which a mean over a sample
and a 16-bit number need, because each exact derivative has corrections of its own: there the three share an error
function or a sigmoid. In float32 they are within 2e-6 of ``max(1, |x|)`` (f) and of 1 (f', f'', gate) of the exact
values, and f and f' have the tails of the exact ones down to 1e-36.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.overrides import handle_torch_function

from lit_gelu.errors import ArgumentError

Function = TypeVar("Function", bound=Callable[..., Tensor])
Traced = TypeVar("Traced", bound=Callable[..., Any])
Joint = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor | None]]

# 16-bit floats are computed in float32 and rounded once, at the end.
OPERATION_DTYPES = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}


def one_node(function: Traced) -> Traced:
    """Have ``torch.fx.symbolic_trace`` write down a function that asks for dtypes, sizes or values as one node."""
    # `torch.fx.wrap` does so by the names in one module, and other modules import these functions.

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        proxies = [value for value in (*args, *kwargs.values()) if isinstance(value, Proxy)]
        return handle_torch_function(called, proxies, *args, **kwargs) if proxies else function(*args, **kwargs)

    return cast("Traced", called)


def elementwise(function: Function) -> Function:
    """Make a function of a float32 or float64 tensor one of any floating tensor, computed in the operation dtype."""
    # The result has the dtype of ``x``; tensor parameters are converted to the operation dtype.

    @one_node
    @functools.wraps(function)
    def computed(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        check_floating(function.__name__, x)
        dtype = OPERATION_DTYPES[x.dtype]
        arguments = [_converted(value, dtype) for value in args]
        keywords = {name: _converted(value, dtype) for name, value in kwargs.items()}
        return function(x.to(dtype), *arguments, **keywords).to(x.dtype)

    return cast("Function", computed)


def elementwise_derivative(function: Function) -> Function:
    """As `elementwise`, of ``(x, order, ...)``; an order without a closed form here is refused."""

    @functools.wraps(function)
    def ordered(x: Tensor, order: int = 1, *args: Any, **kwargs: Any) -> Tensor:
        if order not in {1, 2}:
            raise ArgumentError(
                f"{function.__name__}: order={order!r} is not available. Use 1 or 2; for more, differentiate order 2 "
                "by torch.func."
            )
        return function(x, order, *args, **kwargs)

    return cast("Function", elementwise(ordered))


@elementwise_derivative
def joint_derivative(x: Tensor, order: int, joint: Joint, /, **kwargs: Any) -> Tensor:
    """Return f' or f'' of a joint form that is exact to the last digit."""
    return keep_nan(x, cast("Tensor", joint(x, **kwargs)[order]))


@dataclass(frozen=True)
class DerivativeOf:
    """The derivatives by order of a joint form that is exact to the last digit; a class, so that it can be pickled."""

    joint: Joint

    def __call__(self, x: Tensor, order: int = 1, **kwargs: Any) -> Tensor:
        """Compute f' or f''."""
        return joint_derivative(x, order, self.joint, **kwargs)


def _converted(value: object, dtype: torch.dtype) -> object:
    """Return a floating tensor in ``dtype`` and anything else as it is."""
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def check_floating(name: str, x: object) -> None:
    """Refuse anything but a floating-point tensor."""
    if isinstance(x, Tensor) and x.dtype in OPERATION_DTYPES:
        return
    accepted = ", ".join(str(dtype).removeprefix("torch.") for dtype in OPERATION_DTYPES)
    kind = f"of {x.dtype}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
    raise ArgumentError(
        f"{name}: x is {kind}. It must be a torch.Tensor of {accepted}: convert it, such as by "
        "torch.as_tensor(x, dtype=torch.float32)."
    )


def check_positive(name: str, parameter: str, value: float | Tensor) -> None:
    """Refuse a number that is not positive; a tensor is not looked at, which would wait for the device."""
    if not isinstance(value, Tensor) and not value > 0:
        raise ArgumentError(f"{name}: {parameter}={value!r} is not accepted. Give a positive number.")


def per_channel(name: str, parameter: str, value: float | Tensor, x: Tensor, channel_dim: int = 1) -> float | Tensor:
    """Shape a number, or a tensor ``()`` or ``(channels,)``, so that it is broadcast as ``F.prelu`` does its weight."""
    if isinstance(value, (Tensor, Proxy)):
        return _broadcast(name, parameter, value, x, channel_dim)
    return value  # a number of Python, or one of NumPy


@one_node
def _broadcast(name: str, parameter: str, value: Tensor, x: Tensor, channel_dim: int) -> Tensor:
    """Shape a tensor for `per_channel`."""
    if value.numel() == 1:
        return value.reshape(())
    dim = channel_dim + x.dim() if channel_dim < 0 else channel_dim
    channels = x.shape[dim] if 0 <= dim < x.dim() else 1
    if value.dim() != 1 or value.shape[0] != channels:
        hint = " For x of shape (..., channels) give channel_dim=-1." if channel_dim == 1 else ""
        raise ArgumentError(
            f"{name}: {parameter} has shape {tuple(value.shape)} and x {tuple(x.shape)}. Give a number, a tensor with "
            f"one element, or one of shape ({channels},): one value for each channel, which is dimension {channel_dim} "
            f"of x.{hint}"
        )
    return value.reshape(-1, *[1] * (x.dim() - 1 - dim))


def largest(x: Tensor) -> float:
    """Return the largest finite value of the dtype of ``x``."""
    return torch.finfo(x.dtype).max


def keep_nan(x: Tensor, value: Tensor) -> Tensor:
    """Return ``value``, but NaN where ``x`` is; ``torch.where`` alone loses it, as a comparison with NaN is false."""
    return torch.where(torch.isnan(x), math.nan, value)


# Beyond these every f' and f'' of the joint forms is constant to float32's last digit; their squares and cubes are
# finite.
NORMAL_END = 30.0
LOGISTIC_END = 104.0  # where float32's logistic function ends


class Derivatives(NamedTuple):
    """What an activation does at each element of its input."""

    value: Tensor  # ``f(x)``
    first: Tensor  # ``f'(x)``; at a kink that of one side
    second: Tensor  # ``f''(x)``, without what sits in kinks
    # ``f(x) / x``, with ``f'(0)`` at ``x = 0``; ``None`` where f(0) is not 0, so that it has no mean.
    gate: Tensor | None


def gated(x: Tensor, gate: Tensor, shut: Tensor) -> Tensor:
    """Return ``x * gate``, but 0 where the gate is shut, at minus infinity too."""
    return torch.where(shut, 0.0, x * gate)


def quotient(value: Tensor, x: Tensor, at_zero: Tensor | float) -> Tensor:
    """Return ``value / x``, with its limit at ``x = 0``."""
    return torch.where(x == 0, at_zero, value / x)
