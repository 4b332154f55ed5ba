"""The kernels as operators of torch, so that profilers, fake tensors and dispatch modes see them by name."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lit_gelu.activations.gpu import launch

_library: Any = torch.library.Library("lit_gelu", "DEF")  # type: ignore[no-untyped-call]


def _like_input(x: Tensor, name: str, p0: float, p1: float) -> Tensor:  # noqa: ARG001
    return torch.empty_like(launch.dense(x))


def _like_gradient(gradient: Tensor, x: Tensor, name: str, p0: float, p1: float) -> Tensor:  # noqa: ARG001
    return torch.empty_like(launch.dense(x))


def _define(schema: str, compute: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Make an operator of torch from what computes it and what tells its output's shape; return it."""
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"lit_gelu::{name}", fake, lib=_library)
    return getattr(torch.ops.lit_gelu, name).default


activation = _define("activation(Tensor x, str name, float p0, float p1) -> Tensor", launch.unary_forward, _like_input)
activation_backward = _define(
    "activation_backward(Tensor gradient, Tensor x, str name, float p0, float p1) -> Tensor",
    launch.unary_backward,
    _like_gradient,
)
