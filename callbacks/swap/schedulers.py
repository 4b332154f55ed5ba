"""Learning rate schedulers whose optimizer is given another parameter group."""

import copy
from collections.abc import Sequence
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from lit_gelu.callbacks.errors import UnsupportedRunError

Scheduler = Any  # Lightning takes anything with step(), state_dict() and optimizer
_RATES = {"base_lrs", "_last_lr", "max_lrs"}  # one learning rate a group, which is in proportion to the group's
_OTHERS = {"lr_lambdas", "min_lrs", "base_momentums", "max_momentums"}  # one entry a group


def check_scheduler(scheduler: Scheduler) -> None:
    """Refuse a scheduler of which is not known what it holds for each group.

    Those of ``torch.optim.lr_scheduler`` are known. A subclass of `LRScheduler` may hold in lists of its own anything
    but one entry a group.

    Args:
        scheduler: A learning rate scheduler.

    Raises:
        UnsupportedRunError: If it is no `LRScheduler`, or has lists with as many entries as the optimizer has groups.
    """
    if not isinstance(scheduler, LRScheduler):
        raise UnsupportedRunError(
            f"ActivationSwap brings new parameters, and cannot tell how {type(scheduler).__name__} schedules a new "
            "parameter group: it is no torch.optim.lr_scheduler.LRScheduler. Use one, or lit_gelu.surgery.swap before "
            "the Trainer gets the model."
        )
    for inner in getattr(scheduler, "_schedulers", ()):
        check_scheduler(inner)
    if type(scheduler).__module__ == "torch.optim.lr_scheduler":
        return
    groups = len(scheduler.optimizer.param_groups)
    unknown = [
        name
        for name, value in vars(scheduler).items()
        if isinstance(value, list) and len(value) == groups and name not in _RATES | _OTHERS | {"_schedulers"}
    ]
    if unknown:
        raise UnsupportedRunError(
            f"ActivationSwap brings new parameters, and cannot tell whether {type(scheduler).__name__}'s "
            f"{', '.join(unknown)} holds one entry for each of the {groups} parameter groups. Keep the values in the "
            "optimizer's groups or in a tuple, or use lit_gelu.surgery.swap before the Trainer gets the model."
        )


def resize_scheduler(scheduler: Scheduler, sources: Sequence[int], factor: float = 1.0) -> None:
    """Fit a scheduler to an optimizer whose groups changed in number.

    Args:
        scheduler: A scheduler that `check_scheduler` accepts; changed in place.
        sources: For every group of the optimizer which of the scheduler's groups it is scheduled like.
        factor: By what the last group's learning rates are multiplied.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        >>> resize_scheduler(scheduler, [0, 0], factor=0.5)
        >>> scheduler.base_lrs
        [0.1, 0.05]
    """
    for inner in getattr(scheduler, "_schedulers", ()):
        resize_scheduler(inner, sources, factor)
    for name in _RATES | _OTHERS:
        values = vars(scheduler).get(name)
        if not isinstance(values, list) or len(values) <= max(sources):
            continue
        resized = [copy.copy(values[source]) for source in sources]
        if name in _RATES:
            resized[-1] = resized[-1] * factor
        setattr(scheduler, name, resized)
