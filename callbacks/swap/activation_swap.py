"""`ActivationSwap`: replaces activations of a model in the course of its training."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BaseFinetuning, StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers.multiprocessing import _MultiProcessingLauncher
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from lit_gelu import surgery
from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.callbacks.swap.run import SWAPS_KEY, SwapRecord, SwapRun, announce_swap, describe_target, install_hooks
from lit_gelu.callbacks.swap.schedule import Mode, SwapSchedule
from lit_gelu.callbacks.trainer import (
    as_batch,
    callbacks_of,
    log_figures,
    log_texts,
    logged_step,
    refuse_mixed_packages,
    shards_parameters,
)
from lit_gelu.errors import ArgumentError, SwapError, UnsupportedRunError
from lit_gelu.surgery import SwapPlan, SwapReport

_BEFOREHAND = "call lit_gelu.surgery.swap on the model before Trainer.fit"


class ActivationSwap(Callback):
    """Replaces activations once: at the start of an epoch, before an optimizer step, or when a metric says so.

    *What is replaced* is said as to `lit_gelu.surgery.swap`. What matches nothing or is not accepted is refused before
    training starts, unless it may be the result of another `ActivationSwap` that is still to come.

    *Learnable parameters* that a new activation brings get a group of their own in the optimizer that has the
    neighbouring weights, with its options and schedule and without weight decay; among frozen weights they are frozen.

    *What is logged.* One line; the figure ``activation_swap/replaced``; and for every site a hyperparameter
    (in TensorBoard a text) ``activation_swap/step_<step>/<site>`` = "old -> new".

    *Checkpoints*, also weights alone, say which swaps were made. With this callback in the Trainer, one is loaded with
    the activations it was trained with, and refused if these are others than the swaps lead to.
    `lit_gelu.callbacks.load_from_checkpoint` needs no Trainer.

    *Not possible*, and refused before training: with FSDP, DeepSpeed or model parallelism, and beside callbacks that
    average weights; to activations with learnable parameters where two optimizers have the neighbouring weights, or
    beside a `BaseFinetuning`; under DDP, to or from activations with learnable parameters (others are fine there).

    Other callbacks learn of the swap through `lit_gelu.callbacks.ActivationSwapListener`.

    Args:
        swaps: From target to activation, such as ``{"activation:relu": "gelu", "head.*": "silu"}``. In Python a target
            may also be a module class or ``by_activation(...)``.
        at_epoch: The epoch (from 0) at whose start to swap.
        at_step: The number of optimizer steps (``trainer.global_step``) after which to swap.
        registry: Where activations are looked up; ``None`` means `lit_gelu.activations.registry`.
        when: A logged metric, such as ``"val_loss"``; the swap is made before the batch after the one it fires at.
            Every rank takes the mean over all ranks. Give one of ``at_epoch``, ``at_step`` and ``when``.
        mode: Whether a smaller (``"min"``) or larger (``"max"``) metric is better.
        patience: It fires at this many checks in a row without improvement. The metric is looked at after each
            validation, or at the end of the training epoch where there is none.
        reaches: Fire at the first check as good as this value instead.
        input_sample: What ``forward`` takes: a tensor, a tuple or a dict; by default the module's
            ``example_input_array``. With it, calls of functions are sites too, as in `lit_gelu.surgery.find_sites`.

    Attributes:
        report: What was replaced, once it was; see `lit_gelu.surgery.SwapReport`.

    Raises:
        ArgumentError: If not exactly one trigger is given, a number is out of range, or ``swaps`` no mapping.
        UnsupportedRunError: At the start of a fit, if it is not possible in this run.
        SwapError: If a target cannot be read; at the start of a fit, if it matches no site of the model.
        OpaqueActivationError: If an activation was never registered: a checkpoint could not say what it is.

    Example:
        >>> swap = ActivationSwap({"activation:relu": "gelu"}, at_epoch=5)
        >>> swap.state_key
        "ActivationSwap{'swaps': {'activation:relu': 'gelu'}, 'at_epoch': 5, 'at_step': None}"
    """

    def __init__(
        self,
        swaps: Mapping[Any, Any],
        at_epoch: int | None = None,
        at_step: int | None = None,
        registry: ActivationRegistry | None = None,
        *,
        when: str | None = None,
        mode: Mode = "min",
        patience: int = 3,
        reaches: float | None = None,
        input_sample: Any = None,
    ) -> None:
        self.schedule = SwapSchedule(at_epoch, at_step, when, mode, patience, reaches)
        if not isinstance(swaps, Mapping) or not swaps:
            raise ArgumentError(
                f"swaps={swaps!r} is no swap. Give a mapping from targets to activations, such as {{'*': 'gelu'}}."
            )
        self.registry = registry
        self.input_sample = input_sample
        resolve = registry_or_default(registry).resolve
        self.swaps = {target: resolve(activation).for_checkpoint() for target, activation in swaps.items()}
        described = {describe_target(target, registry): spec for target, spec in self.swaps.items()}
        self._key = {"swaps": described, **self.schedule.describe()}
        self.record: SwapRecord | None = None  # that it was made, and when
        self.report: SwapReport | None = None  # the swap as it stands in the model now
        self.run: SwapRun | None = None  # what it has in common with the Trainer's other swaps

    @property
    def state_key(self) -> str:
        """What tells the state of this swap from that of others in a checkpoint."""
        return self._generate_state_key(**self._key)

    @property
    def applied(self) -> bool:
        """Whether the swap was made."""
        return self.record is not None

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot work, and learn which model is meant."""
        refuse_mixed_packages(trainer, pl_module)
        if stage == "fit":
            _refuse_strategy_and_averaging(trainer)
        if self.run is not None and self.run.pl_module is not pl_module:  # a swap made in another one does not count
            self.record = self.report = None
            self.schedule.reset()
        self.run = _run_of(trainer, pl_module)
        in_processes = isinstance(trainer.strategy.launcher, _MultiProcessingLauncher)
        if stage == "fit" and self.run.swaps[0] is self and in_processes:  # one warning for all
            # Nothing here could bring a swap back: the main process calls no hook of a callback, before the fit or
            # after it. It is no refusal, since checkpoints and exports are made in the fit's own processes.
            rank_zero_warn(
                "ActivationSwap: this strategy trains in processes of its own (ddp_spawn, ddp_fork, ddp_notebook). "
                "From these Lightning brings back the trained weights, but not the activations: do not use the module "
                "in the main process. Build it from the run's checkpoint with lit_gelu.callbacks.load_from_checkpoint, "
                "or train with strategy='ddp' or on one device."
            )
        self.run.forget_checkpoint()
        install_hooks(pl_module)

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the swap before any training is spent, and give the optimizers the groups of the checkpoint."""
        run = _run_of(trainer, pl_module)
        if run.swaps[0] is self:
            run.connect_optimizers()
        if self.record is not None:
            return
        try:
            plan = self.plan(pl_module)
        except SwapError:
            if all(other.applied for other in run.swaps if other is not self):
                raise
            return  # another swap may bring what this one is for
        for note in plan.notes:
            rank_zero_warn(f"{self.state_key}: {note}")
        if not plan.rows:
            rank_zero_warn(f"{self.state_key} will change nothing: {'; '.join(map(str, plan.skipped))}.")
        self._check_parameters(run, plan)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn if the run ends before the swap."""
        if not self.applied:
            self.schedule.warn_if_beyond_end(trainer, pl_module, self.state_key)

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Swap if this is the epoch; a resumed run may first have to validate at the end of the one before."""
        if self.schedule.at_epoch is not None and not trainer.fit_loop.restarting:
            self._swap_if_due(trainer, pl_module)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Swap if this is the step, or if a resumed run is past the epoch or in the middle of it."""
        self._swap_if_due(trainer, pl_module)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the metric."""
        if not self.applied and trainer.state.fn == TrainerFn.FITTING:
            self.schedule.look_at_metric(trainer, pl_module, train_epoch_end=False)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the metric."""
        if not self.applied:
            self.schedule.look_at_metric(trainer, pl_module, train_epoch_end=True)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return what the checks of a metric have come to; that the swap was made stands at the checkpoint's top."""
        return self.schedule.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what the checks had come to; the swap itself was made again before the weights were loaded."""
        self.schedule.load_state_dict(state_dict)

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Warn if the checkpoint cannot say whether its weights belong to the swapped activations."""
        if self.applied and SWAPS_KEY not in checkpoint:
            rank_zero_warn(f"The checkpoint says nothing of {self.state_key}, which was made in this model and stays.")

    def plan(self, pl_module: LightningModule) -> SwapPlan:
        """Return the swap, checked."""
        return surgery.plan_swap(pl_module, self.swaps, as_batch(self.input_sample, pl_module), registry=self.registry)

    def _check_parameters(self, run: SwapRun, plan: SwapPlan) -> None:
        """Refuse parameters that come or go where they must not."""
        if not (parameters := list(dict.fromkeys([*plan.removed_parameters, *plan.new_parameters]))):
            return
        # DistributedDataParallel learns at wrapping which gradients to reduce. A parameter that comes later would have
        # each rank's own gradient, without a word, and the ranks would part; for one that goes it would wait. Making
        # room for new ones before wrapping would need find_unused_parameters=True for the whole run.
        trainer = run.trainer
        if isinstance(trainer.strategy, DDPStrategy) or isinstance(trainer.model, DistributedDataParallel):
            raise UnsupportedRunError(
                "ActivationSwap cannot add or remove parameters under DistributedDataParallel, which would not average "
                f"their gradients: {', '.join(parameters)}. Swap to and from activations without parameters, train on "
                f"one device, or {_BEFOREHAND}."
            )
        if any(isinstance(other, BaseFinetuning) for other in callbacks_of(run.trainer)):
            raise UnsupportedRunError(
                "ActivationSwap changes the optimizer's groups, of which a BaseFinetuning keeps a list of its own. Use "
                f"activations without parameters, or {_BEFOREHAND}."
            )
        rows = [row for row in plan.placements if next(row.module.parameters(), None) is not None]
        if run.groups is not None:
            run.groups.check(row.site.names if row.site.kind == "module" else (row.place,) for row in rows)

    def _swap_if_due(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.applied or not self.schedule.is_due(trainer):
            return
        run = _run_of(trainer, pl_module)
        plan = self.plan(pl_module)
        self._check_parameters(run, plan)
        with run.parameters_tracked():
            self.report = plan.apply()
        sites = {row.name: (str(row.old), str(row.new)) for row in self.report.rows}
        order = max((1 + record.order for record, _ in run.swaps_by_order()), default=0)
        self.record = SwapRecord(trainer.current_epoch, trainer.global_step, order, sites, logged_step(trainer))
        announce_swap(trainer, pl_module, self.report)
        rank_zero_info(self.record.line())
        log_figures(trainer, {("activation_swap", "replaced"): len(self.report)})
        step = f"step_{self.record.logged_step}"
        log_texts(trainer, {("activation_swap", step, name): f"{old} -> {new}" for name, (old, new) in sites.items()})


def _refuse_strategy_and_averaging(trainer: Trainer) -> None:
    """Refuse strategies that split parameters over devices, and callbacks that average weights."""
    strategy = trainer.strategy
    if shards_parameters(trainer) or strategy.restore_checkpoint_after_setup:
        raise UnsupportedRunError(
            f"ActivationSwap does not work with {type(strategy).__name__}, which loads checkpoints when it is too late "
            f"to make the swaps again. Use DDP or one device, or {_BEFOREHAND}."
        )
    for callback in callbacks_of(trainer):
        if isinstance(callback, (StochasticWeightAveraging, WeightAveraging)):
            raise UnsupportedRunError(
                f"ActivationSwap does not work with {type(callback).__name__} in the same Trainer: that keeps a "
                f"copy of the model with the old activations. Leave one of the two out, or {_BEFOREHAND}."
            )


def _run_of(trainer: Trainer, pl_module: LightningModule) -> SwapRun:
    """Return what the swaps of a Trainer have in common, made by the first that asks."""
    swaps = swaps_of(trainer)
    for swap in swaps:
        if swap.run is not None and swap.run.trainer is trainer and swap.run.pl_module is pl_module:
            return swap.run
    return SwapRun(trainer, pl_module, swaps)


def swaps_of(trainer: Trainer) -> list[ActivationSwap]:
    """Return the swaps of a Trainer, in its order."""
    return [callback for callback in callbacks_of(trainer) if isinstance(callback, ActivationSwap)]
