"""`RestorableSwap`: what of a swap is in a checkpoint, and how it comes out of one."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from lit_gelu import surgery
from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.callbacks.swap.history import SWAPS_KEY, LiveSwap, SwapRecord, describe_target, install_hooks
from lit_gelu.callbacks.swap.run import SwapRun
from lit_gelu.callbacks.swap.schedule import SwapSchedule
from lit_gelu.callbacks.trainer_facts import as_batch, callbacks_of
from lit_gelu.errors import ArgumentError, CheckpointError, shown
from lit_gelu.surgery import OnObstacle, SwapPlan, SwapReport


class RestorableSwap(Callback):
    """A swap that can be written down, made again and taken back; its subclass `ActivationSwap` makes it."""

    def __init__(
        self,
        swaps: Mapping[Any, Any],
        schedule: SwapSchedule,
        registry: ActivationRegistry | None,
        *,
        strict_activations: bool,
        input_sample: Any,
        on_obstacle: OnObstacle,
    ) -> None:
        if not isinstance(swaps, Mapping) or not swaps:
            raise ArgumentError(
                f"swaps={swaps!r} is no swap. Give a mapping from targets to activations, such as {{'*': 'gelu'}}."
            )
        self.schedule = schedule
        self.registry = registry
        self.strict_activations = strict_activations
        self.input_sample = input_sample
        self.on_obstacle = on_obstacle
        known = registry_or_default(registry)
        self.swaps = {target: known.resolve(wanted).for_checkpoint() for target, wanted in swaps.items()}
        described = {describe_target(target, registry): spec for target, spec in self.swaps.items()}
        self._key = {"swaps": described, **schedule.describe()}
        self.report: SwapReport | None = None  # what was replaced, once it was
        self.record: SwapRecord | None = None  # that it was made, and when
        self.live: LiveSwap | None = None  # the swap as it stands in the model now
        self.run: SwapRun | None = None  # what it has in common with the Trainer's other swaps
        self._loaded_by_hand = False

    @property
    def state_key(self) -> str:
        """What tells the state of this swap from that of others in a checkpoint."""
        return self._generate_state_key(**self._key)

    @property
    def applied(self) -> bool:
        """Whether the swap was made."""
        return self.record is not None

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return whether the swap was made, and what was replaced, as plain data."""
        metric = {"metric": self.schedule.metric.state_dict()} if self.schedule.when is not None else {}
        record = self.record.to_dict() if self.record is not None else None
        return {"applied": self.applied, "record": record, **metric}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state that was saved; the swap itself was made again before the weights were loaded."""
        if not isinstance(state_dict, Mapping) or not isinstance(state_dict.get("applied"), bool):
            raise CheckpointError(
                f"The checkpoint is damaged: it has {shown(state_dict)} as the state of {self.state_key}."
            )
        if "metric" in state_dict:
            self.schedule.metric.load_state_dict(state_dict["metric"])
        record = SwapRecord.from_dict(state_dict["record"]) if state_dict["applied"] else None
        changed, self.record = record != self.record, record
        self._loaded_by_hand = changed and self.run is None
        if changed and self.run is not None:  # a checkpoint without the swaps at its top level
            self.run.restore([self])

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Warn if the checkpoint cannot say whether its weights belong to the swapped activations."""
        if self.applied and SWAPS_KEY not in checkpoint and self.state_key not in checkpoint.get("callbacks", {}):
            rank_zero_warn(f"The checkpoint says nothing of {self.state_key}, which was made in this model and stays.")

    def connect(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Learn which model is meant; a swap made in another one does not count."""
        if self.run is not None and self.run.pl_module is not pl_module:
            self.record = self.live = self.report = None
            self.schedule.metric.reset()
        self.run = run_of(trainer, pl_module)
        self.run.forget_checkpoint()
        install_hooks(pl_module, find_run)

    def plan(self, pl_module: LightningModule) -> SwapPlan:
        """Return the swap, checked."""
        return surgery.plan_swap(
            pl_module, self.swaps, self._sample(pl_module), registry=self.registry, on_obstacle=self.on_obstacle
        )

    def take_back(self) -> None:
        """Put back what was in the model before the swap."""
        if self.live is not None:
            self.live.undo()
        self.live = self.report = None

    def make_again(self, pl_module: LightningModule) -> None:
        """Make the recorded swap in a model, if it is not there."""
        sample = self._sample(pl_module)
        self.live = self.record.replay(pl_module, self.registry, sample) if self.record is not None else None
        self.report = self.live.report if self.live is not None else None
        self._loaded_by_hand = False

    def tell_restored(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say what a checkpoint has led to, in a line and to the other callbacks."""
        if self.record is None:
            rank_zero_info("ActivationSwap: taken back, since the checkpoint is from before it.")
        else:
            rank_zero_info(f"{self.record.line()} (made again from the checkpoint)")
        announce_swap(trainer, pl_module, self.report)

    def _sample(self, pl_module: LightningModule) -> Any:
        """Return the input sample, as the module takes it."""
        own = isinstance(self.input_sample, str) and self.input_sample == "example_input_array"
        return as_batch(pl_module.example_input_array if own else self.input_sample, pl_module)


def run_of(trainer: Trainer, pl_module: LightningModule) -> SwapRun:
    """Return what the swaps of a Trainer have in common, made by the first that asks."""
    swaps = swaps_of(trainer)
    for swap in swaps:
        if swap.run is not None and swap.run.trainer is trainer and swap.run.pl_module is pl_module:
            return swap.run
    return SwapRun(trainer, pl_module, swaps)


def find_run(pl_module: LightningModule) -> SwapRun | None:
    """Return the swaps of the Trainer that a module is in now."""
    swaps = swaps_of(pl_module._trainer) if pl_module._trainer is not None else []
    return swaps[0].run if swaps else None


def swaps_of(trainer: Trainer) -> list[RestorableSwap]:
    """Return the swaps of a Trainer, in its order."""
    return [callback for callback in callbacks_of(trainer) if isinstance(callback, RestorableSwap)]


@runtime_checkable
class ActivationSwapListener(Protocol):
    """What a callback has that wants to know when activations are replaced; any callback of the Trainer may have it.

    A hook on a module that is replaced dies silently with it. Whoever holds hooks on, or references to, activations
    finds them anew when this is called.
    """

    def on_activations_swapped(self, trainer: Trainer, pl_module: LightningModule, report: SwapReport | None) -> None:
        """Called on every rank after activations were replaced, in the order of the Trainer's callbacks.

        Args:
            trainer: The Trainer.
            pl_module: Its module, with the new activations.
            report: What was replaced; ``None`` if a swap was taken back, since a checkpoint from before it was loaded.
        """


def announce_swap(trainer: Trainer, pl_module: LightningModule, report: SwapReport | None) -> None:
    """Call `ActivationSwapListener.on_activations_swapped` of every callback that has it."""
    if isinstance(trainer.model, DistributedDataParallel):
        # It fails at the next forward if the model's only buffers went with an activation; to be dropped with the first
        # torch whose DDP looks for buffers anew (2.13 does not).
        trainer.model._assign_modules_buffers()  # type: ignore[no-untyped-call]
    for callback in callbacks_of(trainer):
        if isinstance(callback, ActivationSwapListener):
            callback.on_activations_swapped(trainer, pl_module, report)
