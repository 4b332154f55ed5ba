"""`LasagneNesterovSGD`: stochastic gradient descent with Nesterov momentum in the form of Lasagne."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lit_gelu.tasks.refusals import check_numbers


class LasagneNesterovSGD(Optimizer):
    r"""Gradient descent with Nesterov momentum, as ``lasagne.updates.nesterov_momentum`` computes it.

    .. math:: g \leftarrow \nabla + \lambda p, \quad v \leftarrow \mu v - \eta g, \quad p \leftarrow p + \mu v - \eta g

    The velocity :math:`v`, zero at first, is a sum of steps: each gradient stays weighted with the learning rate of its
    own time. In `torch.optim.SGD` it is a sum of gradients, weighted with the present learning rate, so the two are
    equal where the learning rate is constant, and differ where it changes (they agree closely on a slow schedule).
    ``momentum=0`` is plain gradient descent.

    All parameters of a group are updated by a few calls of torch's ``foreach`` operations, and nothing waits for the
    device.

    Args:
        params: Parameters, or dicts of groups of them.
        lr: Learning rate :math:`\eta`.
        momentum: :math:`\mu`.
        weight_decay: :math:`\lambda`, the factor of the parameter in its gradient: the gradient of
            :math:`\lambda \lVert p \rVert^2 / 2`.

    Raises:
        TaskArgumentError: If a number is out of its range.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
        >>> optimizer = LasagneNesterovSGD([weight], lr=0.1, momentum=0.9)
        >>> weight.grad = torch.tensor([1.0])
        >>> optimizer.step()  # v = -.1, p = 1 - .09 - .1
        >>> weight.item()
        0.8100000023841858
    """

    def __init__(self, params: Any, lr: float = 0.1, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        check_numbers(learning_rate=lr, momentum=momentum, weight_decay=weight_decay)
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            with_gradient = [(parameter, parameter.grad) for parameter in group["params"] if parameter.grad is not None]
            if not with_gradient:
                continue
            for parameter, _ in with_gradient:
                if "velocity" not in self.state[parameter]:
                    self.state[parameter]["velocity"] = torch.zeros_like(parameter)
            parameters, gradients = map(list, zip(*with_gradient, strict=True))
            velocities = [self.state[parameter]["velocity"] for parameter in parameters]
            nesterov_step_(parameters, gradients, velocities, group["lr"], group["momentum"], group["weight_decay"])
        return loss


def nesterov_step_(
    parameters: list[Tensor],
    gradients: list[Tensor],
    velocities: list[Tensor],
    lr: float,
    momentum: float,
    weight_decay: float,
) -> None:
    """Make one step of `LasagneNesterovSGD`, in place."""
    if weight_decay:
        gradients = list(torch._foreach_add(gradients, parameters, alpha=weight_decay))
    torch._foreach_mul_(velocities, momentum)
    torch._foreach_add_(velocities, gradients, alpha=-lr)
    torch._foreach_add_(parameters, velocities, alpha=momentum)
    torch._foreach_add_(parameters, gradients, alpha=-lr)
