"""`ReplicaProgressBar`: Lightning's bar for a group, in optimizer steps."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from typing_extensions import override


class ReplicaProgressBar(RichProgressBar):
    """Lightning's `RichProgressBar` for a `lit_gelu.replicas.ReplicaGroup`: it counts optimizer steps.

    A batch of a group is several optimizer steps, and Lightning's own bars count batches. Here the training bar and its
    speed are in steps, and ``members`` says how many replicas are trained and how many there are. For any other module
    it is Lightning's bar, whose arguments it takes::

        Trainer(callbacks=[ReplicaProgressBar(leave=True)])
    """

    @property
    @override
    def total_train_batches(self) -> int | float:
        """Optimizer steps in an epoch of a group; batches of any other module."""
        steps = _steps_of_epoch(self.trainer.lightning_module)
        return super().total_train_batches if steps is None else steps[1]

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Show the steps that are made."""
        steps = _steps_of_epoch(pl_module)
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx if steps is None else steps[0] - 1)

    @override
    def get_metrics(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        """Return what is shown behind the bar."""
        shown = super().get_metrics(trainer, pl_module)
        active: Any = getattr(pl_module, "active", None)
        if _steps_of_epoch(pl_module) is not None:
            shown["members"] = f"{int(active.sum())}/{len(active)}"
        return shown


def _steps_of_epoch(module: Any) -> tuple[int, int] | None:
    """Return the steps that a group has made of an epoch, and all of them; ``None`` of any other module."""
    # Not by class: replicas import callbacks.
    steps: tuple[int, int] | None = getattr(module, "steps_of_epoch", None)
    return steps
