"""How the paper's nets are trained: Adam and Nesterov momentum, torch's and the paper's, and their learning rates."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from lit_gelu.errors import ArgumentError
from lit_gelu.tasks.activation_task import check_numbers


class _ForeachOptimizer(Optimizer, ABC):
    """Updates all parameters of a group that have a gradient by a few operations over lists of tensors."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # overloads
        """Update every parameter that has a gradient; return the loss that ``closure`` computes anew, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if pairs := [(param, param.grad) for param in group["params"] if param.grad is not None]:
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
    steps shrink with them, and `torch.optim.Adam` would make steps of the full learning rate; with ``eps=1e-4`` that
    comes near to this one. The bias of m is corrected by the beta1 of the present step, also where a schedule has
    changed it. Source: Hendrycks and Gimpel's code for arXiv 1606.08415, section 3.5, which took it from that of
    Salimans and Kingma 2016, arXiv 1602.07868; the papers do not say so.

    Args:
        params: Parameters, or groups of them, as for every optimizer of torch.
        lr: Learning rate.
        betas: Decay of the first and of the second moment.
        eps: Added to the second moment, in the square of the gradient's unit.

    Raises:
        ArgumentError: If a number is out of its range.

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
        check_numbers(learning_rate=lr, beta1=betas[0], beta2=betas[1], eps=eps)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    def _update(self, params: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        lr, betas, eps = group["lr"], group["betas"], group["eps"]
        states: list[dict[str, Any]] = [self.state[param] for param in params]
        for param, state in zip(params, states, strict=True):
            if not state:
                state["step"] = 0
                state["first_moment"] = torch.zeros_like(param, memory_format=torch.preserve_format)
                state["second_moment"] = torch.zeros_like(param, memory_format=torch.preserve_format)
            state["step"] += 1
        first, second = ([state[name] for state in states] for name in ("first_moment", "second_moment"))
        torch._foreach_lerp_(first, gradients, 1 - betas[0])
        torch._foreach_mul_(second, betas[1])
        torch._foreach_addcmul_(second, gradients, gradients, 1 - betas[1])
        denominators = torch._foreach_div(second, [1 - betas[1] ** state["step"] for state in states])
        torch._foreach_add_(denominators, eps)
        torch._foreach_sqrt_(denominators)
        steps = [-lr / (1 - betas[0] ** state["step"]) for state in states]
        torch._foreach_addcdiv_(params, first, denominators, steps)


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


class HalvesSchedule(LRScheduler):
    """Keeps an Adam's learning rate for half of a run, then lets it fall linearly towards 0; beta1 is .9, then .5."""

    # Of 200 epochs, number 100 is the last at the full rate, number 101 has 0.99 of it, and the last, number 199, has
    # 0.01; 0 is reached only after the run. Hendrycks and Gimpel's code for CIFAR-10 (arXiv 1606.08415, section 3.5);
    # the paper says "linearly decays to zero", which is followed more closely if periods are steps, not epochs, and
    # does not mention beta1. Both lie in param_groups: in the optimizer's checkpoint, and for `LearningRateMonitor`.

    def __init__(self, optimizer: Optimizer, periods: int, last_epoch: int = -1) -> None:
        self.periods = periods
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """Return the learning rate of each group for the present period, and set its beta1 (as `OneCycleLR` does)."""
        for group in self.optimizer.param_groups:
            group["betas"] = (0.9 if 2 * self.last_epoch < self.periods else 0.5, group["betas"][1])
        factor = max(0.0, min(2 - 2 * self.last_epoch / self.periods, 1))
        return [base * factor for base in self.base_lrs]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved period; how many there are is what this run says, which may be longer."""
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "periods"})
        self._last_lr = [float(rate) for rate in self.get_lr()]
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = rate


def check_schedule_lasts(trainer: Trainer | None, epochs: int) -> None:
    """Refuse a Trainer that trains for more epochs than a model's schedule has."""
    longest = None if trainer is None else trainer.max_epochs
    if longest is not None and longest > epochs:
        raise ArgumentError(
            f"max_epochs={longest} given to the Trainer, but the model's schedule ends after epochs={epochs}: the "
            f"learning rate would be 0 from then on. Give the model epochs={longest}, or fewer max_epochs."
        )


def cosine_factor(step: int, period: float) -> float:
    """Return the share of the initial learning rate that a step, from 0 on, uses; ``period`` need not be whole."""
    # Loshchilov and Hutter 2017 (arXiv 1608.03983), equation 5, without a restart: 0 from the end of the period on.
    return (1 + math.cos(math.pi * min(step / period, 1.0))) / 2


def steps_per_epoch(trainer: Trainer) -> float:
    """Return the optimizer steps in an epoch of a Trainer, with the fraction that a dropped last batch stands for."""
    # 100,000 samples in batches of 128, the last one dropped, are 781 steps but 781.25 here: Loshchilov and Hutter's
    # code has the schedule end after 50 x 100,000 / 128 = 39,062.5 steps.
    if trainer.train_dataloader is None:
        trainer.fit_loop.setup_data()
    batches = float(trainer.num_training_batches)
    loader = trainer.train_dataloader
    if isinstance(loader, DataLoader) and loader.drop_last and loader.batch_size:
        exact = len(loader.sampler) / loader.batch_size  # type: ignore[arg-type] # it has one, for it has a length
        batches = exact if math.floor(exact) == batches else batches
    if not math.isfinite(batches):
        raise ArgumentError(
            "The training loader does not know its number of batches, which the schedule needs. Give "
            "Trainer(limit_train_batches=...), a number."
        )
    accumulated = trainer.accumulate_grad_batches
    # Lightning also steps after an epoch's last batch, even if fewer batches were accumulated.
    return batches if accumulated == 1 else math.ceil(trainer.num_training_batches / accumulated)
