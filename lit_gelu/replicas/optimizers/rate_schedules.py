"""What the members configure: an optimizer each, and schedulers, which are stepped as Lightning steps them alone."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import (
    _configure_optimizers,
    _configure_schedulers_automatic_opt,
    _validate_optimizers_attached,
    _validate_scheduler_api,
)
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer, lr_scheduler

from lit_gelu.replicas.errors import NotReplicableError


@dataclass(frozen=True)
class Configured:
    """What a member's ``configure_optimizers`` returned.

    Args:
        optimizer: The one optimizer.
        schedulers: Schedulers, with when each is stepped.
    """

    optimizer: Optimizer
    schedulers: list[LRSchedulerConfig] = field(default_factory=list)

    @property
    def changes_rates_alone(self) -> bool:
        """Whether the schedulers are known to change learning rates and nothing else."""
        return all(
            type(config.scheduler).__module__ == lr_scheduler.__name__
            and not hasattr(config.scheduler, "cycle_momentum")
            and not isinstance(config.scheduler, lr_scheduler.SequentialLR | lr_scheduler.ChainedScheduler)
            for config in self.schedulers
        )

    def states(self) -> list[dict[str, Any]]:
        """Return the schedulers' states, as a run alone saves them."""
        return [config.scheduler.state_dict() for config in self.schedulers]

    def load_states(self, states: Iterable[dict[str, Any]]) -> None:
        """Go on from saved states."""
        for config, state in zip(self.schedulers, states, strict=True):
            config.scheduler.load_state_dict(state)


def configured(member: LightningModule) -> Configured:
    """Return what a member configures.

    Raises:
        NotReplicableError: If it is no single optimizer, or Lightning would not take it either, or a scheduler would be
            stepped by what a group has no value of for each replica.
    """
    name = f"{type(member).__name__}.configure_optimizers"
    given = member.configure_optimizers()
    try:
        optimizers, schedulers, monitor = _configure_optimizers(given)  # type: ignore[arg-type] # checks it
        configs = _configure_schedulers_automatic_opt(schedulers, monitor)
        _validate_scheduler_api(configs, member)
        _validate_optimizers_attached(optimizers, configs)
    except (MisconfigurationException, TypeError) as error:
        raise NotReplicableError(f"{name} returned what Lightning does not take: {error}") from error
    _check_optimizers(name, optimizers)
    for config in configs:
        if config.reduce_on_plateau and config.interval == "step":
            raise NotReplicableError(
                f'{name} steps a scheduler by {config.monitor!r} with interval="step", which a group does not: give it '
                'interval="epoch", or train this module alone.'
            )
    return Configured(optimizers[0], configs)


def _check_optimizers(name: str, optimizers: Sequence[Optimizer]) -> None:
    """Refuse several optimizers, and one that computes the loss itself."""
    if len(optimizers) != 1:
        raise NotReplicableError(
            f"{name} returned {len(optimizers)} optimizers; a group takes one for each member, with or without "
            "schedulers. Train this module alone."
        )
    closure = inspect.signature(type(optimizers[0]).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise NotReplicableError(
            f"{name} returned {type(optimizers[0]).__name__}, whose step computes the loss again, and a group makes "
            "one step of what it has computed for all members. Give an optimizer whose step takes no closure, or train "
            "this module alone."
        )


def step_schedulers(member: LightningModule, schedulers: Sequence[LRSchedulerConfig], step: int, epoch: int) -> None:
    """Step what Lightning steps behind a batch.

    Args:
        member: The module, whose ``lr_scheduler_step`` is called.
        schedulers: Its schedulers.
        step: The number of the batch in its epoch, from 0.
        epoch: The number of the epoch that this batch ends, or -1.
    """
    for interval, index in (("step", step), ("epoch", epoch)):
        for config in schedulers:
            is_due = config.interval == interval and index >= 0 and (index + 1) % config.frequency == 0
            if is_due and not config.reduce_on_plateau:
                member.lr_scheduler_step(config.scheduler, None)


def step_on_plateau(
    member: LightningModule,
    schedulers: Iterable[LRSchedulerConfig],
    epoch: int,
    value_of: Callable[[str], Tensor | None],
) -> None:
    """Step behind an epoch what looks at a value.

    Args:
        member: The module.
        schedulers: Its schedulers.
        epoch: The number of the epoch.
        value_of: Returns the member's last value by name, or ``None``.

    Raises:
        NotReplicableError: If there is no such value, and the scheduler is a strict one.
    """
    for config in schedulers:
        if not config.reduce_on_plateau or (epoch + 1) % config.frequency:
            continue
        value = value_of(str(config.monitor))
        if value is not None:
            member.lr_scheduler_step(config.scheduler, value)
        elif config.strict:
            raise NotReplicableError(
                f"A scheduler of {type(member).__name__} monitors {config.monitor!r}, of which a group has no value "
                "for each member. Let it monitor a name that validation_step logs, and validate every epoch."
            )
