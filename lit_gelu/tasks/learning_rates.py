"""Learning rates in the course of training: the CIFAR-10 net's two halves, and the CIFAR-100 net's half cosine."""

import math
from typing import Any

from lightning.pytorch import Trainer
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader

from lit_gelu.tasks.errors import TaskArgumentError


def constant_then_linear(period: float, periods: float) -> float:
    """Return the factor of the learning rate: 1 in the first half of a run, then linear towards 0 at its end."""
    # Of 200 epochs, number 100 is the last at 1, number 101 has 0.99, and the last, number 199, has 0.01: it never is 0
    # in a run, after which it is. Hendrycks and Gimpel's code for CIFAR-10 (arXiv 1606.08415, section 3.5); the paper
    # says "linearly decays to zero", to which steps as periods come much nearer than epochs (D10).
    return max(0.0, min(2 - 2 * period / periods, 1))


def beta1_of_halves(period: float, periods: float, first: float = 0.9, second: float = 0.5) -> float:
    """Return Adam's beta1: one value in the first half of a run, another in the second."""
    # In Hendrycks and Gimpel's code for CIFAR-10; the paper does not mention it (D10).
    return first if 2 * period < periods else second


class HalvesSchedule(LRScheduler):
    """Sets an Adam's learning rate by `constant_then_linear` and its beta1 by `beta1_of_halves`, once a period."""

    # Both lie in param_groups: in the optimizer's checkpoint, and for `LearningRateMonitor` (log_momentum=True).

    def __init__(self, optimizer: Optimizer, periods: int, last_epoch: int = -1) -> None:
        self.periods = periods
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """Return the learning rate of each group for the present period, and set its beta1 (as `OneCycleLR` does)."""
        beta1 = beta1_of_halves(self.last_epoch, self.periods)
        for group in self.optimizer.param_groups:
            group["betas"] = (beta1, group["betas"][1])
        factor = constant_then_linear(self.last_epoch, self.periods)
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
        raise TaskArgumentError(
            f"max_epochs={longest} given to the Trainer, but the model's schedule ends after epochs={epochs}: the "
            f"learning rate would be 0 from then on. Give the model epochs={longest}, or fewer max_epochs."
        )


def cosine_factor(step: int, period: float) -> float:
    """Return the share of the initial learning rate that a step, from 0 on, uses; ``period`` need not be whole."""
    # Loshchilov and Hutter 2017 (arXiv 1608.03983), equation 5, without a restart: 0 from the end of the period on.
    return (1 + math.cos(math.pi * min(step / period, 1.0))) / 2


def cosine_schedule(optimizer: Optimizer, period: float) -> LambdaLR:
    """Return the scheduler of `cosine_factor`, to be stepped after every optimizer step."""
    return LambdaLR(optimizer, lambda step: cosine_factor(step, period))


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
        raise TaskArgumentError(
            "The training loader does not know its number of batches, which the schedule needs. Give "
            "batches_per_epoch=, or Trainer(limit_train_batches=...), a number."
        )
    accumulated = trainer.accumulate_grad_batches
    # Lightning makes a step behind an epoch's last batch too, however many batches it is of.
    return batches if accumulated == 1 else math.ceil(trainer.num_training_batches / accumulated)
