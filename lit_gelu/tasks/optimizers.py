"""Optimizers as the GELU paper's CIFAR nets were trained with them: Adam and Nesterov momentum, other than torch's."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from lit_gelu.arguments import is_number
from lit_gelu.tasks.errors import TaskArgumentError
from lit_gelu.tasks.refusals import check_numbers


class _ForeachOptimizer(Optimizer, ABC):
    """Updates all parameters of a group that have a gradient by a few operations over lists of tensors."""

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient; return the loss that ``closure`` computes anew, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            pairs = [(param, param.grad) for param in group["params"] if param.grad is not None]
            if pairs:
                params, gradients = map(list, zip(*pairs, strict=True))
                self._update(params, gradients, group)
        return loss

    @abstractmethod
    def _update(self, params: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        """Make one step of the parameters of a group; the gradients are left as they are."""


class AdamEpsilonInsideRoot(_ForeachOptimizer):
    """Adam whose epsilon is added to the second moment before the root is taken, not to the root.

    With the gradient g at step t (from 1), and for every parameter p:

        m <- beta1 m + (1 - beta1) g
        v <- beta2 v + (1 - beta2) g^2
        p <- p - lr * m / (1 - beta1^t) / sqrt(v / (1 - beta2^t) + epsilon)

    The denominator is thus never below ``sqrt(epsilon)``, 1e-4 by default: where gradients are smaller than that,
    steps shrink with them. `torch.optim.Adam` with the same epsilon adds 1e-8 to the root and makes steps of the full
    learning rate there; with ``eps=1e-4`` it comes near to this one. The bias of m is corrected by the beta1 of the
    present step, also where a schedule has changed it. Source: Hendrycks and Gimpel's code for arXiv 1606.08415,
    section 3.5, which took it from that of Salimans and Kingma 2016, arXiv 1602.07868; the papers do not say so (D10).

    All parameters are updated by a few operations over lists of tensors. Nothing waits for a GPU: learning rate, betas
    and the number of steps are plain numbers. Schedulers may change ``lr`` and ``betas`` in ``param_groups``.

    Args:
        params: Parameters, or groups of them, as for every optimizer of torch.
        lr: Learning rate.
        betas: Decay of the first and of the second moment.
        eps: Added to the second moment, in the square of the gradient's unit.

    Raises:
        TaskArgumentError: If a number is out of its range.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
        >>> optimizer = AdamEpsilonInsideRoot([weight], lr=0.1)
        >>> weight.grad = torch.tensor([2.0, 1e-4])
        >>> optimizer.step()  # by lr * g / sqrt(g^2 + 1e-8): the second gradient is as large as the root of epsilon
        >>> weight.data
        tensor([0.9000, 0.9293])
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        for name, value, accepted in (
            ("lr", lr, is_number(lr) and lr >= 0),
            ("betas[0]", betas[0], is_number(betas[0]) and 0 <= betas[0] < 1),
            ("betas[1]", betas[1], is_number(betas[1]) and 0 <= betas[1] < 1),
            ("eps", eps, is_number(eps) and eps > 0),
        ):
            if not accepted:
                accepts = "a number from 0 to below 1" if name.startswith("betas") else "a finite number above 0"
                raise TaskArgumentError(f"{name}={value!r} is not accepted. Give {accepts}.")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    def _update(self, params: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        lr, betas, eps = group["lr"], group["betas"], group["eps"]
        states = [self._state(param) for param in params]
        first, second = ([state[name] for state in states] for name in ("first_moment", "second_moment"))
        for state in states:
            state["step"] += 1
        torch._foreach_lerp_(first, gradients, 1 - betas[0])
        torch._foreach_mul_(second, betas[1])
        torch._foreach_addcmul_(second, gradients, gradients, 1 - betas[1])
        denominators = torch._foreach_div(second, [1 - betas[1] ** state["step"] for state in states])
        torch._foreach_add_(denominators, eps)
        torch._foreach_sqrt_(denominators)
        steps = [-lr / (1 - betas[0] ** state["step"]) for state in states]
        torch._foreach_addcdiv_(params, first, denominators, steps)

    def _state(self, param: Tensor) -> dict[str, Any]:
        """Return the moments of a parameter and its number of steps, made at its first step."""
        state: dict[str, Any] = self.state[param]
        if not state:
            state["step"] = 0
            state["first_moment"] = torch.zeros_like(param, memory_format=torch.preserve_format)
            state["second_moment"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        return state


class LasagneNesterovSGD(_ForeachOptimizer):
    """Gradient descent with Nesterov momentum, as ``lasagne.updates.nesterov_momentum`` computes it."""

    # g = gradient + weight_decay p; v <- momentum v - lr g; p <- p + momentum v - lr g, with the velocity v zero at
    # first. v is a sum of steps, each weighted with the learning rate of its own time; in `torch.optim.SGD` it is a sum
    # of gradients, weighted with the present one: the two are equal while the learning rate is constant.

    def __init__(self, params: Any, lr: float = 0.1, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        check_numbers(learning_rate=lr, momentum=momentum, weight_decay=weight_decay)
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def _update(self, params: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        for param in params:
            if "velocity" not in self.state[param]:
                self.state[param]["velocity"] = torch.zeros_like(param)
        velocities = [self.state[param]["velocity"] for param in params]
        if group["weight_decay"]:
            gradients = list(torch._foreach_add(gradients, params, alpha=group["weight_decay"]))
        torch._foreach_mul_(velocities, group["momentum"])
        torch._foreach_add_(velocities, gradients, alpha=-group["lr"])
        torch._foreach_add_(params, velocities, alpha=group["momentum"])
        torch._foreach_add_(params, gradients, alpha=-group["lr"])
