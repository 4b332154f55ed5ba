"""`AdamEpsilonInsideRoot`: Adam as the GELU paper's CIFAR-10 net was trained with it."""

import math
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from lit_gelu.tasks.errors import TaskArgumentError


class AdamEpsilonInsideRoot(Optimizer):
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
            ("lr", lr, 0 <= lr < math.inf),
            ("betas[0]", betas[0], 0 <= betas[0] < 1),
            ("betas[1]", betas[1], 0 <= betas[1] < 1),
            ("eps", eps, 0 < eps < math.inf),
        ):
            if not accepted:
                accepts = "a number from 0 to below 1" if name.startswith("betas") else "a finite number above 0"
                raise TaskArgumentError(f"{name}={value!r} is not accepted. Give {accepts}.")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient.

        Args:
            closure: Computes the loss and the gradients anew, where the caller wants that here.

        Returns:
            The closure's loss, ``None`` without one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if params:
                self._update(params, group["lr"], group["betas"], group["eps"])
        return loss

    def _update(self, params: list[Tensor], lr: float, betas: tuple[float, float], eps: float) -> None:
        """Make one step of the parameters of a group."""
        states = [self._state(param) for param in params]
        gradients = [param.grad for param in params if param.grad is not None]
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
