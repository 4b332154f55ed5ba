"""Optimizers of torch as the tasks use them, with a fused kernel if that is asked for."""

import functools
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from lit_gelu.tasks.errors import TaskArgumentError
from lit_gelu.tasks.refusals import check_flags

_AnyOptimizer = TypeVar("_AnyOptimizer", bound=Optimizer)


def adam(
    parameters: Iterable[Tensor], learning_rate: float, *, beta1: float = 0.9, eps: float = 1e-8, fused: bool = False
) -> torch.optim.Adam:
    """Return torch's Adam at a constant learning rate, in one kernel over all parameters if that is asked for."""
    parameters = list(parameters)
    kernel = _fused_argument(parameters, fused)
    optimizer = torch.optim.Adam(parameters, lr=learning_rate, betas=(beta1, 0.999), eps=eps, fused=kernel)
    return _keeping(optimizer, kernel)


def sgd(groups: list[dict[str, Any]], learning_rate: float, momentum: float, *, fused: bool = False) -> torch.optim.SGD:
    """Return torch's gradient descent with Nesterov momentum, in one kernel if that is asked for."""
    kernel = _fused_argument([parameter for group in groups for parameter in group["params"]], fused)
    optimizer = torch.optim.SGD(groups, lr=learning_rate, momentum=momentum, nesterov=momentum > 0, fused=kernel)
    return _keeping(optimizer, kernel)


def check_fused_version(optimizer: str, fused_optimizer: bool) -> None:
    """Refuse ``fused_optimizer`` for optimizers other than torch's, which have no fused kernel."""
    check_flags(fused_optimizer=fused_optimizer)
    if fused_optimizer and optimizer != "torch":
        raise TaskArgumentError(
            f"fused_optimizer=True is not accepted with optimizer={optimizer!r}, which has no fused kernel. Give "
            'optimizer="torch", or leave fused_optimizer out.'
        )


def _fused_argument(parameters: list[Tensor], wanted: bool) -> bool | None:
    """Return torch's argument ``fused``; refuse parameters that it has no fused kernel for."""
    if not wanted:
        return None  # as torch chooses: False would also keep it from its operations over lists of tensors
    devices = _get_fused_kernels_supported_devices()
    for parameter in parameters:
        if parameter.device.type not in devices or not parameter.is_floating_point():
            raise TaskArgumentError(
                f"fused_optimizer=True is not accepted for parameters of {parameter.dtype} on {parameter.device}. "
                f"Train floating parameters on {', '.join(devices)}, or leave it out."
            )
    return True


def _keeping(optimizer: _AnyOptimizer, fused: bool | None) -> _AnyOptimizer:
    """Keep an optimizer to its own kernel: by itself it would take over what the loaded state was computed with."""
    optimizer.register_load_state_dict_pre_hook(functools.partial(_with_own_kernel, fused))
    return optimizer


def _with_own_kernel(fused: bool | None, _: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "param_groups": [{**group, "fused": fused} for group in state["param_groups"]]}
