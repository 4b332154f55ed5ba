"""What a member of a group sees of a Trainer: what it would see if its run were alone."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from torch import Tensor


class MemberTrainer:
    """Stands for the Trainer in the members; whatever it does not say itself, the group's Trainer says.

    Args:
        trainer: The group's.
        steps: Optimizer steps in an epoch, which are the batches of a run alone.
    """

    def __init__(self, trainer: Any, steps: int | None) -> None:
        self.of_group, self.steps = trainer, steps
        self.further = 0  # steps of the present batch that the group's Trainer has not counted yet
        # Where `LightningModule.log` writes to; `results` changes it. `tests/replicas/test_evaluation.py` fails where
        # Lightning has moved these.
        self._results: _ResultCollection | None = None
        self._logger_connector = SimpleNamespace(should_reset_tensors=lambda _: False, _current_fx=None)

    def __getattr__(self, name: str) -> Any:
        """Return what the group's Trainer has."""
        return getattr(self.__dict__["of_group"], name)

    @property
    def global_step(self) -> int:
        """The optimizer steps so far."""
        step: int = self.of_group.global_step
        return step + self.further

    @property
    def num_training_batches(self) -> int:
        """The batches of an epoch."""
        return self.of_group.num_training_batches if self.steps is None else self.steps

    @property
    def estimated_stepping_batches(self) -> float:
        """The optimizer steps of the whole run, as Lightning estimates them."""
        most = self.of_group.max_steps if self.of_group.max_steps != -1 else math.inf
        if self.of_group.max_epochs == -1:
            return float(most) if math.isinf(most) else int(most)
        return int(min(most, self.num_training_batches * max(self.of_group.max_epochs, 1)))

    @contextmanager
    def results(self, member: LightningModule, hook: str, results: _ResultCollection) -> Iterator[None]:
        """Let what a member logs in a hook go to its own results."""
        before = member._trainer, member._current_fx_name
        member.trainer, member._current_fx_name, self._results = self, hook, results  # type: ignore[assignment]
        try:
            yield
        finally:
            (member._trainer, member._current_fx_name), self._results = before, None


def values_of(results: _ResultCollection, loaders: int) -> dict[str, Tensor]:
    """Return what a pass over loaders gave, as a run alone has it in ``callback_metrics``."""
    found: dict[str, Tensor] = {}
    for loader in (*range(loaders), None):
        results.dataloader_idx = loader
        found |= results.metrics(on_step=False)["callback"]
    return found
