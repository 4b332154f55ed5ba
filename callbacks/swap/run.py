"""`SwapRun`: all swaps of one run together, since they may build on one another and share optimizers and checkpoint."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.callbacks.swap.history import ACTIVATIONS_KEY, GROUPS_KEY, SWAPS_KEY, Checkpoint, SwapRecord
from lit_gelu.callbacks.swap.parameter_groups import ParameterGroups
from lit_gelu.errors import CheckpointError, shown
from lit_gelu.surgery.activation_record import (
    ActivationRecord,
    describe_differences,
    read_activations,
    record_activations,
)
from lit_gelu.surgery.changes import without_marks

if TYPE_CHECKING:
    from lit_gelu.callbacks.swap.activation_swap import ActivationSwap


def registry_for(
    pl_module: LightningModule, registries: Sequence[ActivationRegistry | None]
) -> ActivationRegistry | None:
    """Return the first registry that was given, else the module's own, as tasks have one; ``None`` for the default."""
    candidates = (*registries, getattr(pl_module, "registry", None))
    return next((registry for registry in candidates if isinstance(registry, ActivationRegistry)), None)


class SwapRun:
    """The swaps of a Trainer in one module."""

    def __init__(self, trainer: Trainer, pl_module: LightningModule, swaps: "Sequence[ActivationSwap]") -> None:
        self.trainer = trainer
        self.pl_module = pl_module
        self.swaps = swaps
        self.groups: ParameterGroups | None = None  # the optimizers' groups, once the optimizers are there
        self._changed = False  # whether parameters came or went, so that a checkpoint has to say where they are
        self._groups_to_rebuild: list[list[dict[str, Any]]] | None = None

    def forget_checkpoint(self) -> None:
        """Forget what a checkpoint said of the optimizers: it was of a run that did not come to its start."""
        self._groups_to_rebuild = None

    def next_order(self) -> int:
        """Return the number of the next swap."""
        return 1 + max((swap.record.order for swap in self.swaps if swap.record is not None), default=-1)

    def connect_optimizers(self) -> None:
        """Take the optimizers that the strategy has set up, with the groups that the checkpoint was saved with."""
        schedulers = [configuration.scheduler for configuration in self.trainer.lr_scheduler_configs]
        self.groups = ParameterGroups(self.pl_module, self.trainer.optimizers, schedulers)
        recorded, self._groups_to_rebuild = self._groups_to_rebuild, None
        self._changed = recorded is not None
        if recorded is not None:
            self.groups.rebuild(recorded)

    @contextmanager
    def parameters_tracked(self) -> Iterator[None]:
        """Bring the optimizers up to date with what happens to the module's parameters within."""
        before = {id(parameter): parameter for parameter in self.pl_module.parameters()}
        yield
        after = {id(parameter): parameter for parameter in self.pl_module.parameters()}
        new = [parameter for key, parameter in after.items() if key not in before]
        removed = [parameter for key, parameter in before.items() if key not in after]
        if self.groups is not None and (new or removed):
            self.groups.drop(removed)
            self.groups.add(new)
            self._changed = True

    def restore(self, records: dict[str, SwapRecord]) -> None:
        """Bring the model to where the records say it is: take all swaps back, then make the recorded ones."""
        changed = [swap for swap in self.swaps if swap.record != records.get(swap.state_key)]
        standing = [(swap.record.order, swap) for swap in self.swaps if swap.record is not None]
        for _, swap in sorted(standing, key=itemgetter(0), reverse=True) if changed else ():
            swap.take_back()
        for swap in self.swaps:
            swap.record = records.get(swap.state_key)
        recorded = [(swap.record.order, swap) for swap in self.swaps if swap.record is not None]
        for _, swap in sorted(recorded, key=itemgetter(0)) if changed else ():
            swap.make_again(self.pl_module)
        for swap in changed:
            swap.tell_restored(self.trainer, self.pl_module)

    def activations(self) -> ActivationRecord:
        """Return the activation at every site of the module."""
        registry = registry_for(self.pl_module, [swap.registry for swap in self.swaps])
        return record_activations(self.pl_module, registry, name_opaque=True)

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Add which swaps were made, which activations there are, and which parameters are in which group."""
        records = [(swap.record, swap.state_key) for swap in self.swaps if swap.record is not None]
        checkpoint[SWAPS_KEY] = [
            {"state_key": key, "record": record.to_dict()}
            for record, key in sorted(records, key=lambda item: item[0].order)
        ]
        checkpoint.setdefault(ACTIVATIONS_KEY, self.activations())
        if self.groups is not None and self._changed and "optimizer_states" in checkpoint:
            checkpoint[GROUPS_KEY] = self.groups.record()

    def read_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Give the module the activations that the checkpoint was saved with; its weights are not loaded yet."""
        if SWAPS_KEY in checkpoint:
            records: dict[str, SwapRecord] = {}
            plain = checkpoint[SWAPS_KEY]
            for entry in plain if isinstance(plain, list) else [plain]:
                match entry:
                    case {"state_key": str() as key, "record": record}:
                        records[key] = SwapRecord.from_dict(record)
                    case _:
                        raise CheckpointError(
                            f"The checkpoint is damaged: it has {shown(entry)} where a swap should stand."
                        )
            self.restore(records)
            recorded = read_activations(checkpoint.get(ACTIVATIONS_KEY, {}))
            differences = describe_differences(recorded, self.activations())
            if differences:
                unknown = sorted(set(records) - {swap.state_key for swap in self.swaps})
                by = f" The checkpoint was trained with {', '.join(unknown)}, which is not here." if unknown else ""
                raise CheckpointError(
                    f"The checkpoint was saved with other activations: {'; '.join(differences)}.{by} Use the model and "
                    "the swaps that it was trained with, or rebuild it with lit_gelu.callbacks.load_from_checkpoint."
                )
            without_marks(checkpoint.get("state_dict", {}))
        if self.trainer.state.fn == TrainerFn.FITTING:
            self._groups_to_rebuild = checkpoint.get(GROUPS_KEY)
