"""A learning rate that falls along half a cosine, from step to step."""

import math

from lightning.pytorch import Trainer
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from lit_gelu.tasks.errors import TaskArgumentError


def cosine_factor(step: int, period: float) -> float:
    r"""Return the share of the initial learning rate that a step uses.

    .. math:: (1 + \cos(\pi k / T)) / 2

    Loshchilov and Hutter 2017 (arXiv 1608.03983), equation 5, without a restart: from the end of the period on it
    is 0.

    Args:
        step: Number of the optimizer step, :math:`k`, from 0 on.
        period: Number of steps from 1 to 0, :math:`T`; need not be whole.

    Returns:
        A number from 0 to 1.

    Example:
        >>> [round(cosine_factor(step, 4), 6) for step in range(6)]
        [1.0, 0.853553, 0.5, 0.146447, 0.0, 0.0]
    """
    return (1 + math.cos(math.pi * min(step / period, 1.0))) / 2


def cosine_schedule(optimizer: Optimizer, period: float) -> LambdaLR:
    """Return the scheduler of `cosine_factor`, to be stepped after every optimizer step.

    Args:
        optimizer: Its learning rates are the initial ones.
        period: Number of steps from the initial learning rate to 0.

    Returns:
        The scheduler.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        >>> schedule = cosine_schedule(optimizer, period=2)
        >>> optimizer.step(), schedule.step(), round(schedule.get_last_lr()[0], 6)
        (None, None, 0.05)
    """
    return LambdaLR(optimizer, lambda step: cosine_factor(step, period))


def steps_per_epoch(trainer: Trainer) -> float:
    """Return the optimizer steps in an epoch of a Trainer, with the fraction that a dropped last batch stands for.

    100,000 samples in batches of 128, the last one dropped, are 781 steps but 781.25 here: Loshchilov and Hutter's code
    has the schedule end after 50 x 100,000 / 128 = 39,062.5 steps.

    Args:
        trainer: Attached to a model that it is to fit; its training loader is made, if it is not yet.

    Returns:
        The samples of a rank over the batch size, where the loader drops the last batch and all others are used; else
        the number of batches. Either is divided by the number of batches whose gradients are added up.

    Raises:
        TaskArgumentError: If the loader does not know its length.
    """
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
    return batches / trainer.accumulate_grad_batches
