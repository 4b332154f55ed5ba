"""The kernels as operators of torch, so that profilers, fake tensors and dispatch modes see them by name."""

import torch
from torch import Tensor

from lit_gelu.activations.gpu import launch

_library = torch.library.Library("lit_gelu", "DEF")
_library.define("activation(Tensor x, str name, float p0, float p1) -> Tensor")
_library.define("activation_backward(Tensor gradient, Tensor x, str name, float p0, float p1) -> Tensor")
_library.impl("activation", launch.unary_forward, "CompositeExplicitAutograd")
_library.impl("activation_backward", launch.unary_backward, "CompositeExplicitAutograd")


@torch.library.register_fake("lit_gelu::activation", lib=_library)
def _like_input(x: Tensor, name: str, p0: float, p1: float) -> Tensor:  # noqa: ARG001
    return torch.empty_like(launch.dense(x))


@torch.library.register_fake("lit_gelu::activation_backward", lib=_library)
def _like_gradient(gradient: Tensor, x: Tensor, name: str, p0: float, p1: float) -> Tensor:  # noqa: ARG001
    return torch.empty_like(launch.dense(x))


activation = torch.ops.lit_gelu.activation.default
activation_backward = torch.ops.lit_gelu.activation_backward.default
