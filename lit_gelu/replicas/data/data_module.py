"""`ReplicaDataModule`: the data of a group, of which every replica takes its own batches."""

import warnings
from collections.abc import Collection
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils._pytree import tree_leaves
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from lit_gelu.data import InMemoryDataModule
from lit_gelu.data.in_memory import InMemorySamples
from lit_gelu.replicas.data.macro_steps import MacroSteps, steps_in_a_batch
from lit_gelu.replicas.data.order import BatchOrder
from lit_gelu.replicas.errors import ReplicaArgumentError
from lit_gelu.replicas.membership.hooks import check_data_hooks
from lit_gelu.replicas.randomness.streams import without_draws

_DRAWING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)  # from torch's generator, without one of its own


class ReplicaDataModule(LightningDataModule):
    """The data that each replica's run alone would have, for a `ReplicaGroup`.

    Its training loader yields the numbers of steps; the group takes each replica's own samples for them.

    Args:
        data: What the runs alone would be given.
        batch_ends: Numbers of steps in an epoch after which a batch of the Trainer ends in any case, so that a
            callback sees the members there.

    Raises:
        ReplicaArgumentError: If ``data`` are no `lit_gelu.data.InMemoryDataModule`, or make batches in ways of their
            own, as those do that cut or mirror images anew each time; or if their loaders for validation or test
            shuffle with a run's own random numbers.
    """

    def __init__(self, data: InMemoryDataModule, batch_ends: Collection[int] = ()) -> None:
        super().__init__()
        if not isinstance(data, InMemoryDataModule):
            raise ReplicaArgumentError(
                f"data={type(data).__name__} is not accepted: the replicas take their batches out of memory. Give an "
                "InMemoryDataModule; a subclass with load_train_and_val and load_test makes one of any two tensors."
            )
        if type(data).train_dataloader is not InMemoryDataModule.train_dataloader:
            raise ReplicaArgumentError(
                f"{type(data).__name__} has a train_dataloader of its own, and the replicas take their batches as "
                "InMemoryDataModule does. Leave it out, or train the modules alone."
            )
        check_data_hooks(data)
        self.data = data
        self.batch_ends = batch_ends

    def prepare_data(self) -> None:
        """Do what the data do."""
        self.data.prepare_data()

    def setup(self, stage: str) -> None:
        """Read what the stage needs.

        Raises:
            NotReplicableError: If reading draws random numbers, of which each run alone has its own.
        """
        self.data.trainer = self.trainer
        name = type(self.data).__name__
        with without_draws(
            f"{name} draws from a run's own random numbers when it reads its sets, so the members' runs alone would "
            "have other ones each, and a group has one for all. Give a split a generator of its own, such as "
            "torch.Generator().manual_seed(0) or numpy.random.default_rng(0)."
        ):
            self.data.setup(stage)

    def teardown(self, stage: str) -> None:
        """Do what the data do."""
        self.data.teardown(stage)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the data by their name, under which a run alone saves it."""
        state = self.data.state_dict()
        return {type(self.data).__qualname__: state} if state else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the data go on from their state."""
        for state in state_dict.values():
            self.data.load_state_dict(state)

    @property
    def samples(self) -> InMemorySamples:
        """The training set."""
        if self.data.train_set is None:
            self.setup("fit")
        train_set = self.data.train_set
        assert train_set is not None  # noqa: S101 - set up
        if type(train_set).__getitems__ is not InMemorySamples.__getitems__:
            raise ReplicaArgumentError(
                f"{type(self.data).__name__} makes its batches in a way of its own ({type(train_set).__name__}), which "
                "a group cannot do for all its members at once. Train the modules alone."
            )
        return train_set

    @property
    def order(self) -> BatchOrder:
        """How epochs are drawn."""
        return BatchOrder(len(self.samples), self.data.batch_size, self.data.order)

    def train_dataloader(self) -> MacroSteps:
        """Return the loader of step numbers."""
        return self.loader(None if self.trainer is None else self.trainer.lightning_module)

    def val_dataloader(self) -> Any:
        """Return the data's own loader, or none where the members have no ``validation_step``."""
        members = [] if self.trainer is None else getattr(self.trainer.lightning_module, "members", [])
        if members and not is_overridden("validation_step", members[0]):
            # Lightning asks whether no batches were meant.
            warnings.filterwarnings("ignore", message="Total length of `list` across ranks is zero")
            return []
        return self._for_all("val_dataloader")

    def test_dataloader(self) -> Any:
        """Return the data's own loader."""
        return self._for_all("test_dataloader")

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Leave numbers of steps where they are, because the host reads them; bring other batches to the device."""
        if self.trainer is not None and self.trainer.training:
            return batch
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def loader(self, group: LightningModule | None) -> MacroSteps:
        """Return the loader of step numbers for a group: as many in a batch as it asks for."""
        asked, replicas = getattr(group, "steps_per_batch", 1), len(getattr(group, "members", [None]))
        steps, most = self.order.steps, -1 if self.trainer is None else self.trainer.max_steps
        # A batch that max_steps cuts off must not be an epoch's last one: the run alone would not validate there.
        ends = [*self.batch_ends, *([most % steps] if most >= 0 else [])]
        on_gpu = self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"
        together = steps_in_a_batch(asked, replicas, steps, on_gpu=on_gpu)
        return MacroSteps(steps, together, ends, self._intervals())

    def _intervals(self) -> list[int]:
        """Return the numbers of steps at multiples of which callbacks of the Trainer look for a batch's end."""
        callbacks = [] if self.trainer is None else self.trainer.callbacks  # type: ignore[attr-defined] # a connector's
        given = [one._every_n_train_steps for one in callbacks if isinstance(one, ModelCheckpoint)]
        return [every for every in given if every > 0]

    def _for_all(self, name: str) -> Any:
        """Return loaders of the data by the name of their hook, if every member's run alone would go through the same.

        Raises:
            ReplicaArgumentError: If one draws its order out of the random numbers of a run.
        """
        loaders = getattr(self.data, name)()
        for loader in tree_leaves(loaders):
            own = getattr(loader, "batch_sampler", None)
            for sampler in (getattr(loader, "sampler", None), own, getattr(own, "sampler", None)):
                if isinstance(sampler, _DRAWING) and sampler.generator is None:
                    raise ReplicaArgumentError(
                        f"{type(self.data).__name__}.{name} returns a loader with a {type(sampler).__name__}, which "
                        "draws an order for each member's run alone, and a group goes through one for all members. "
                        "Leave shuffle=True out, or give the loader a generator=torch.Generator() of its own."
                    )
        return loaders
