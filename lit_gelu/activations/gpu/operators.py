"""The kernels as operators of torch, so that profilers, fake tensors and dispatch modes see them by name."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lit_gelu.activations.gpu import launch, launch_gated, launch_learned

_library: Any = torch.library.Library("lit_gelu", "DEF")  # type: ignore[no-untyped-call]


def _define(schema: str, compute: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Make an operator of torch from what computes it and what tells its output's shape; return it."""
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"lit_gelu::{name}", fake, lib=_library)
    return getattr(torch.ops.lit_gelu, name).default


def _like_input(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(launch.dense(x))


def _like_second(_gradient: Tensor, x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(launch.dense(x))


def _like_all(gradient: Tensor, x: Tensor, p0: Tensor, p1: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    first, second = (torch.empty_like(p, dtype=torch.float32) for p in (p0, p1))
    return _like_second(gradient, x), first, second


def _like_half(x: Tensor, name: str, p0: float, dim: int, gate: int) -> Tensor:  # noqa: ARG001
    return launch_gated.halved(launch.dense(x), dim)


activation = _define("activation(Tensor x, str name, float p0, float p1) -> Tensor", launch.unary_forward, _like_input)
activation_backward = _define(
    "activation_backward(Tensor gradient, Tensor x, str name, float p0, float p1) -> Tensor",
    launch.unary_backward,
    _like_second,
)
learned = _define(
    "learned(Tensor x, Tensor p0, Tensor p1, str name, int channel_dim) -> Tensor",
    launch_learned.learned_forward,
    _like_input,
)
learned_backward = _define(
    "learned_backward(Tensor gradient, Tensor x, Tensor p0, Tensor p1, str name, int channel_dim)"
    " -> (Tensor, Tensor, Tensor)",
    launch_learned.learned_backward,
    _like_all,
)
gated = _define(
    "gated(Tensor x, str name, float p0, int dim, int gate) -> Tensor", launch_gated.gated_forward, _like_half
)
gated_backward = _define(
    "gated_backward(Tensor gradient, Tensor x, str name, float p0, int dim, int gate) -> Tensor",
    launch_gated.gated_backward,
    _like_second,
)
zero_identity = _define("zero_identity(Tensor x, Tensor seed) -> Tensor", launch.zero_identity_forward, _like_input)
zero_identity_backward = _define(
    "zero_identity_backward(Tensor gradient, Tensor y) -> Tensor", launch.zero_identity_backward, _like_second
)
