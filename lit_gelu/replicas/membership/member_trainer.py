"""What a member of a group sees of a Trainer: what it would see if its run were alone."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from torch import Tensor
from torch.optim import Optimizer

from lit_gelu.replicas.errors import NotReplicableError


@dataclass
class GroupRun:
    """What a Trainer does with a group, as far as the members see it.

    Args:
        trainer: The group's.
        steps: Optimizer steps in an epoch, which are the batches of a run alone; ``None`` where nothing is trained.
        data: What the runs alone would be given.
        executor: What holds the members' optimizers.
        further: Steps of the present batch that the group's Trainer has not counted yet.
        begun: Steps that were begun of the epoch.
        latest: What a run alone has in ``callback_metrics``, ``[replicas]`` by name.
    """

    trainer: Any
    steps: int | None
    data: Any
    executor: Any
    further: int = 0
    begun: int = 0
    latest: dict[str, Tensor] = field(default_factory=dict)


class MemberTrainer:
    """Stands for the Trainer in a member; whatever it does not say itself, the group's Trainer says.

    Args:
        run: What the members have in common.
        member: Which sees it.
        replica: Its number; ``None`` for the one that stands for all of them.
    """

    def __init__(self, run: GroupRun, member: LightningModule, replica: int | None) -> None:
        self.run, self.lightning_module, self.replica = run, member, replica
        # Where `LightningModule.log` writes to; `results` changes it. `tests/replicas/test_evaluation.py` fails where
        # Lightning has moved these.
        self._results: _ResultCollection | None = None
        self._logger_connector = SimpleNamespace(should_reset_tensors=lambda _: False, _current_fx=None)
        self.over = 0  # loaders of the pass that these results are of, when it has been through all of them

    def __getattr__(self, name: str) -> Any:
        """Return what the group's Trainer has, unless it is of all members at once."""
        if name in _OF_ALL:
            raise NotReplicableError(
                f"A member reads trainer.{name}, which is of the whole group and not of its run. Read {_OF_ALL[name]}, "
                "or train the module alone."
            )
        return getattr(self.__dict__["run"].trainer, name)

    @property
    def model(self) -> LightningModule:
        """The member."""
        return self.lightning_module

    @property
    def global_step(self) -> int:
        """The optimizer steps so far."""
        step: int = self.run.trainer.global_step
        return step + self.run.further

    @property
    def num_training_batches(self) -> int:
        """The batches of an epoch."""
        return self.run.trainer.num_training_batches if self.run.steps is None else self.run.steps

    @property
    def is_last_batch(self) -> bool:
        """Whether the present batch is an epoch's last one."""
        return self.run.trainer.is_last_batch if self.run.steps is None else self.run.begun == self.run.steps

    @property
    def estimated_stepping_batches(self) -> float:
        """The optimizer steps of the whole run, as Lightning estimates them."""
        trainer = self.run.trainer
        most = trainer.max_steps if trainer.max_steps != -1 else math.inf
        if trainer.max_epochs == -1:
            return float(most) if math.isinf(most) else int(most)
        return int(min(most, self.num_training_batches * max(trainer.max_epochs, 1)))

    @property
    def datamodule(self) -> Any:
        """What the run alone would be given."""
        return self.run.data

    @property
    def train_dataloader(self) -> Any:
        """The loader of the run alone, of which no batch is taken."""
        return None if self.run.steps is None else self.run.data.train_dataloader()

    @property
    def optimizers(self) -> list[Optimizer]:
        """The member's own optimizer."""
        replica, optimizer = self._own("optimizers"), self.run.executor.optimizer
        return [] if optimizer is None else [optimizer.own[replica]]

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        """The member's own schedulers."""
        replica, optimizer = self._own("lr_scheduler_configs"), self.run.executor.optimizer
        return [] if optimizer is None else optimizer.configured[replica].schedulers

    @property
    def strategy(self) -> Any:
        """The group's, but with the member's own optimizer: ``LightningModule.optimizers`` looks for it there."""
        return _MemberStrategy(self)

    @property
    def callback_metrics(self) -> Mapping[str, Tensor]:
        """What the member has logged."""
        replica = self._own("callback_metrics")
        found = {name: values[replica] for name, values in self.run.latest.items()}
        return found | (values_of(self._results, self.over) if self._results is not None and self.over else {})

    @property
    def should_stop(self) -> bool:
        """Whether the group stops."""
        stops: bool = self.run.trainer.should_stop
        return stops

    @should_stop.setter
    def should_stop(self, _: bool) -> None:
        raise NotReplicableError(
            "A member sets trainer.should_stop, which would end the other members' runs, too. Let a callback of the "
            "group set group.active[replica] = False, or train the module alone."
        )

    def _own(self, name: str) -> int:
        """Return the member's number, or refuse what the one that stands for all would read."""
        if self.replica is None:
            raise NotReplicableError(
                f"The training step reads the Trainer's {name}, which each member has of its own, and one computes for "
                'all of them. Give the group executor="loop".'
            )
        return self.replica

    @contextmanager
    def results(self, hook: str, results: _ResultCollection) -> Iterator[None]:
        """Let what the member logs in a hook go to its own results."""
        member: Any = self.lightning_module
        before = member._trainer, member._current_fx_name
        member.trainer, member._current_fx_name, self._results = self, hook, results
        try:
            yield
        finally:
            (member._trainer, member._current_fx_name), self._results = before, None


class _MemberStrategy:
    """The group's strategy, as a member sees it."""

    def __init__(self, trainer: MemberTrainer) -> None:
        self.trainer = trainer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trainer.run.trainer.strategy, name)

    @property
    def optimizers(self) -> list[Optimizer]:
        return self.trainer.optimizers

    @property
    def _lightning_optimizers(self) -> list[LightningOptimizer]:
        return [LightningOptimizer(optimizer) for optimizer in self.trainer.optimizers]


def values_of(results: _ResultCollection, loaders: int) -> dict[str, Tensor]:
    """Return what a pass over loaders gave, as a run alone has it in ``callback_metrics``."""
    found: dict[str, Tensor] = {}
    for loader in (*range(loaders), None):
        results.dataloader_idx = loader
        found |= results.metrics(on_step=False)["callback"]
    return found


# What only the group's Trainer has, and what a member may read in its place.
_OF_ALL = {
    "fit_loop": "global_step, current_epoch, num_training_batches or is_last_batch",
    "logged_metrics": "callback_metrics",
    "progress_bar_metrics": "callback_metrics",
}
