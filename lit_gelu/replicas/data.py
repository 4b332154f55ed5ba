"""`ReplicaDataModule`: the data of a group, of which every replica takes its own batches."""

from collections.abc import Collection

from lightning.pytorch import LightningDataModule, LightningModule

from lit_gelu.data import InMemoryDataModule
from lit_gelu.data.in_memory import InMemorySamples
from lit_gelu.replicas.errors import ReplicaArgumentError
from lit_gelu.replicas.macro_steps import MacroSteps, steps_in_a_batch
from lit_gelu.replicas.order import BatchOrder


class ReplicaDataModule(LightningDataModule):
    """The data that each replica's run alone would have, for a `ReplicaGroup`.

    Its training loader yields the numbers of steps; the group takes each replica's own samples for them.

    Args:
        data: What the runs alone would be given.
        batch_ends: Numbers of steps in an epoch after which a batch of the Trainer ends in any case, so that a
            callback sees the members there.

    Raises:
        ReplicaArgumentError: If ``data`` are no `lit_gelu.data.InMemoryDataModule`.
    """

    def __init__(self, data: InMemoryDataModule, batch_ends: Collection[int] = ()) -> None:
        super().__init__()
        if not isinstance(data, InMemoryDataModule):
            raise ReplicaArgumentError(
                f"data={type(data).__name__} is not accepted: the replicas take their batches out of memory. Give an "
                "InMemoryDataModule; a subclass with load_train_and_val and load_test makes one of any two tensors."
            )
        self.data = data
        self.batch_ends = batch_ends

    def prepare_data(self) -> None:
        """Do what the data do."""
        self.data.prepare_data()

    def setup(self, stage: str) -> None:
        """Read what the stage needs."""
        self.data.setup(stage)

    @property
    def samples(self) -> InMemorySamples:
        """The training set."""
        if self.data.train_set is None:
            self.data.setup("fit")
        assert self.data.train_set is not None  # noqa: S101 - set up
        return self.data.train_set

    @property
    def order(self) -> BatchOrder:
        """How epochs are drawn."""
        return BatchOrder(len(self.samples), self.data.batch_size, self.data.order)

    def train_dataloader(self) -> MacroSteps:
        """Return the loader of step numbers."""
        return self.loader(None if self.trainer is None else self.trainer.lightning_module)

    def loader(self, group: LightningModule | None) -> MacroSteps:
        """Return the loader of step numbers for a group: as many in a batch as it asks for."""
        asked, replicas = getattr(group, "steps_per_batch", 1), len(getattr(group, "members", [None]))
        return MacroSteps(self.order.steps, steps_in_a_batch(asked, replicas, self.order.steps), self.batch_ends)
