"""Activations and their derivatives as torch's own operations, into tensors that are given."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

# (inputs, outputs), and (gradient, inputs, gradient of the inputs): the last one is written to.
Written = tuple[Callable[[Tensor, Tensor], Any], Callable[[Tensor, Tensor, Tensor], Any]]
_aten: Any = torch.ops.aten
# What an operator calls: the frame of Python around it takes as long as the kernel for a layer of this size.
_threshold_backward, _gelu_backward, _elu_backward, _silu_backward = (
    operator.grad_input._op
    for operator in (_aten.threshold_backward, _aten.gelu_backward, _aten.elu_backward, _aten.silu_backward)
)
_nn: Any = torch._C._nn  # whose stubs leave out some arguments


def written_activation(module: nn.Module) -> Written | None:
    """Return an activation and its derivative as torch's own operations, or ``None`` if it is none of these."""
    make = _WRITTEN.get(type(module))
    return None if make is None or getattr(module, "inplace", False) else make(module)


def _relu(_: Any) -> Written:
    def derivative(gradient: Tensor, inputs: Tensor, of_inputs: Tensor) -> None:
        _threshold_backward(gradient, inputs, 0, grad_input=of_inputs)

    return lambda inputs, outputs: torch.clamp_min(inputs, 0, out=outputs), derivative


def _gelu(module: Any) -> Written:
    approximate = module.approximate

    def derivative(gradient: Tensor, inputs: Tensor, of_inputs: Tensor) -> None:
        _gelu_backward(gradient, inputs, approximate=approximate, grad_input=of_inputs)

    return lambda inputs, outputs: _nn.gelu(inputs, approximate=approximate, out=outputs), derivative


def _elu(module: Any) -> Written:
    alpha = module.alpha

    def derivative(gradient: Tensor, inputs: Tensor, of_inputs: Tensor) -> None:
        _elu_backward(gradient, alpha, 1, 1, False, inputs, grad_input=of_inputs)

    return lambda inputs, outputs: _nn.elu(inputs, alpha, out=outputs), derivative


def _silu(_: Any) -> Written:
    def derivative(gradient: Tensor, inputs: Tensor, of_inputs: Tensor) -> None:
        _silu_backward(gradient, inputs, grad_input=of_inputs)

    return lambda inputs, outputs: _nn.silu(inputs, out=outputs), derivative


_WRITTEN: dict[type[nn.Module], Callable[[Any], Written]] = {
    nn.ReLU: _relu,
    nn.GELU: _gelu,
    nn.ELU: _elu,
    nn.SiLU: _silu,
}
