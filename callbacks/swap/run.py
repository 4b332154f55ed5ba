"""`SwapRun`: all swaps of one run together, since they may build on one another and share optimizers and checkpoint.

Lightning calls no callback between reading a checkpoint and loading its weights, and leaves the callbacks' states out
of ``weights_only`` saves. Both are seen by the module's own ``on_save_checkpoint`` and ``on_load_checkpoint``, so these
are wrapped, on the instance: the module's class stays as it is.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info
from torch.nn.parallel import DistributedDataParallel

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.callbacks.swap.parameter_groups import ParameterGroups
from lit_gelu.callbacks.trainer import as_batch, callbacks_of
from lit_gelu.errors import CheckpointError, shown
from lit_gelu.report import SwapChange, SwapEvent
from lit_gelu.surgery import SwapReport
from lit_gelu.surgery.activation_record import (
    ActivationRecord,
    describe_differences,
    read_activations,
    record_activations,
    swap_recorded,
)
from lit_gelu.surgery.swap import ActivationSelector, selector_of, without_marks

if TYPE_CHECKING:
    from lit_gelu.callbacks.swap.activation_swap import ActivationSwap

ACTIVATIONS_KEY = "lit_gelu_activations"  # tasks write it too
SWAPS_KEY = "lit_gelu_activation_swaps"
GROUPS_KEY = "lit_gelu_parameter_groups"
Checkpoint = dict[str, Any]


@dataclass(frozen=True)
class SwapRecord:
    """A swap that was made, as plain data."""

    epoch: int  # the epoch in which it was made
    step: int  # the number of optimizer steps before it; below 0 if another Trainer began it
    order: int  # how many swaps of the same run came before it
    # From the fully qualified name of a site to its spec before and after, as text.
    sites: Mapping[str, tuple[str, str]]
    # The step as loggers number it, one for each batch but for those that only accumulate (accumulate_grad_batches):
    # fewer than `step` where a batch has several optimizer steps.
    logged_step: int

    def event(self) -> SwapEvent:
        """Return what the report of a run says of it."""
        changes = tuple(SwapChange(name, old, new) for name, (old, new) in self.sites.items())
        return SwapEvent(self.logged_step, self.epoch, changes)

    def line(self) -> str:
        """Return one line that says what was replaced."""
        changes: dict[tuple[str, str], list[str]] = {}
        for name, change in self.sites.items():
            changes.setdefault(change, []).append(name)
        parts = [f"{old} -> {new} at {', '.join(names)}" for (old, new), names in changes.items()]
        return f"ActivationSwap at epoch {self.epoch}, step {self.step}: {'; '.join(parts) or 'nothing to replace'}"

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain data, which ``torch.load(weights_only=True)`` reads."""
        return {**vars(self), "sites": {name: {"old": old, "new": new} for name, (old, new) in self.sites.items()}}

    @classmethod
    def from_dict(cls, state: object) -> Self:
        """Read what `to_dict` wrote."""
        match state:
            case {
                "epoch": int() as epoch,
                "step": int() as step,
                "order": int() as order,
                "sites": dict() as rows,
                "logged_step": int() as logged_step,
            } if all(isinstance(name, str) and _is_change(row) for name, row in rows.items()):
                sites = {name: (row["old"], row["new"]) for name, row in rows.items()}
                return cls(epoch, step, order, sites, logged_step)
        raise CheckpointError(f"The checkpoint is damaged: it has {shown(state)} where a swap should stand.")


def _is_change(row: object) -> bool:
    return isinstance(row, Mapping) and isinstance(row.get("old"), str) and isinstance(row.get("new"), str)


def describe_target(target: Any, registry: ActivationRegistry | None) -> str:
    """Return a target of a swap as text that is the same in every process: the form that YAML has for it."""
    selector = selector_of(target)
    if isinstance(selector, ActivationSelector) and not isinstance(selector.activation, str):
        return f"activation:{registry_or_default(registry).resolve(selector.activation)}"
    return str(selector)


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

    def swaps_by_order(self) -> "list[tuple[SwapRecord, ActivationSwap]]":
        """Return the swaps that were made, in their order."""
        pairs = [(swap.record, swap) for swap in self.swaps if swap.record is not None]
        return sorted(pairs, key=lambda row: row[0].order)

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
        if not (changed := [swap for swap in self.swaps if swap.record != records.get(swap.state_key)]):
            return
        for _, swap in reversed(self.swaps_by_order()):
            if swap.report is not None:
                swap.report.undo()
            swap.report = None
        for swap in self.swaps:
            swap.record = records.get(swap.state_key)
        for record, swap in self.swaps_by_order():
            specs = {name: new for name, (_, new) in record.sites.items()}
            sample = as_batch(swap.input_sample, self.pl_module)
            swap.report = swap_recorded(self.pl_module, specs, swap.registry, sample)
        for swap in changed:
            if swap.record is None:
                rank_zero_info("ActivationSwap: taken back, since the checkpoint is from before it.")
            else:
                rank_zero_info(f"{swap.record.line()} (made again from the checkpoint)")
            announce_swap(self.trainer, self.pl_module, swap.report)

    def activations(self) -> ActivationRecord:
        """Return the activation at every site of the module."""
        registry = registry_for(self.pl_module, [swap.registry for swap in self.swaps])
        return record_activations(self.pl_module, registry, name_opaque=True)

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Add which swaps were made, which activations there are, and which parameters are in which group."""
        checkpoint[SWAPS_KEY] = [
            {"state_key": swap.state_key, "record": record.to_dict()} for record, swap in self.swaps_by_order()
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
            if differences := describe_differences(recorded, self.activations()):
                unknown = sorted(set(records) - {swap.state_key for swap in self.swaps})
                by = f" The checkpoint was trained with {', '.join(unknown)}, which is not here." if unknown else ""
                raise CheckpointError(
                    f"The checkpoint was saved with other activations: {'; '.join(differences)}.{by} Use the model and "
                    "the swaps that it was trained with, or rebuild it with lit_gelu.callbacks.load_from_checkpoint."
                )
            without_marks(checkpoint.get("state_dict", {}))
        if self.trainer.state.fn == TrainerFn.FITTING:
            self._groups_to_rebuild = checkpoint.get(GROUPS_KEY)


def install_hooks(module: LightningModule) -> None:
    """Wrap a module's two checkpoint hooks, once."""
    for name in ("on_save_checkpoint", "on_load_checkpoint"):
        present = module.__dict__.get(name)
        if not (isinstance(present, partial) and present.func is _wrapped_hook):
            # A partial of a plain function: it can be pickled, its copy belongs to the module's copy, and Lightning's
            # `is_overridden` looks into it.
            module.__dict__[name] = partial(_wrapped_hook, module, name, present)


def _wrapped_hook(module: LightningModule, name: str, previous: Any, checkpoint: Checkpoint) -> None:
    """Call the module's own hook: when it saves, before the record is added; when it loads, behind the replay."""
    callbacks = callbacks_of(module._trainer) if module._trainer is not None else []
    runs = (getattr(callback, "run", None) for callback in callbacks)
    run = next((run for run in runs if isinstance(run, SwapRun)), None)
    if run is not None and name == "on_load_checkpoint":
        run.read_checkpoint(checkpoint)
    (previous or getattr(type(module), name).__get__(module))(checkpoint)
    if run is not None and name == "on_save_checkpoint":
        run.write_checkpoint(checkpoint)


@runtime_checkable
class ActivationSwapListener(Protocol):
    """What a callback has that holds hooks on activations, or references to them: it finds them anew when called."""

    def on_activations_swapped(self, trainer: Trainer, pl_module: LightningModule, report: SwapReport | None) -> None:
        """Called on every rank after activations were replaced; the report is ``None`` if a swap was taken back."""


def announce_swap(trainer: Trainer, pl_module: LightningModule, report: SwapReport | None) -> None:
    """Call `ActivationSwapListener.on_activations_swapped` of every callback that has it."""
    if isinstance(trainer.model, DistributedDataParallel):
        # It fails at the next forward if the model's only buffers went with an activation; to be dropped with the first
        # torch whose DDP looks for buffers anew (2.13 does not).
        trainer.model._assign_modules_buffers()  # type: ignore[no-untyped-call]
    for callback in callbacks_of(trainer):
        if isinstance(callback, ActivationSwapListener):
            callback.on_activations_swapped(trainer, pl_module, report)
