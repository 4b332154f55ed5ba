"""`ActivationSwap`: replaces activations of a model in the course of its training."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from typing_extensions import override

from lit_gelu import activations, surgery
from lit_gelu.activations import ActivationRegistry
from lit_gelu.callbacks.announcement import announce_swap
from lit_gelu.callbacks.errors import CallbackArgumentError
from lit_gelu.callbacks.log_records import Path, log_figures, log_texts, require_logger
from lit_gelu.callbacks.swap_measurement import PREFIX, first_of_batch, measure_swap
from lit_gelu.callbacks.swap_record import SwapRecord, describe_target, refuse_state
from lit_gelu.callbacks.trainer_facts import callbacks_of, is_trial_run, steps_of_run
from lit_gelu.surgery import NoMatchError, SwapPlan, SwapReport


class ActivationSwap(Callback):
    """Replaces activations once: at the start of an epoch, or before the batch of an optimizer step.

    *What is replaced* is said as to `lit_gelu.surgery.swap`. Targets that match nothing and activations that are not
    accepted are refused before training starts. (If the Trainer has another `ActivationSwap` that is still to come, its
    result may be what a target waits for; then only the swap itself refuses.) Not available yet: activations that bring
    or leave learnable parameters or buffers.

    *What is logged.* One line; the figure ``activation_swap/replaced``; and for every site a hyperparameter
    (in TensorBoard a text) ``activation_swap/step_<step>/<site>`` = "old -> new". With ``curvature=True`` also the
    statistics of every replaced site, ``activation_swap/<site>/before/<statistic>`` and ``.../after/<statistic>``, and
    the jump of the model's output, ``activation_swap/jump/relative`` = ||new - old|| / ||old|| and
    ``activation_swap/jump/max_absolute``: from two forward passes in evaluation mode on the batch at hand, which leave
    no trace in the training.

    *Checkpoints* say whether the swap was made, and of which sites. Whoever loads one (``fit``, ``validate``, ``test``
    or ``predict`` with ``ckpt_path``, this callback in the Trainer) gets the activations it was trained with: the swap
    is made again, or taken back if the checkpoint is from before it. A run that resumes beyond the trigger from a
    checkpoint that knows nothing of this swap makes it at once. A checkpoint saved with ``save_weights_only=True`` says
    nothing.

    Other callbacks learn of the swap through `lit_gelu.callbacks.ActivationSwapListener`.

    Args:
        swaps: From target to activation, such as ``{"activation:relu": "gelu", "head.*": "silu"}``. In Python a target
            may also be a module class or ``by_activation(...)``.
        at_epoch: The epoch (from 0) at whose start to swap; with ``curvature=True`` just before its first batch.
        at_step: The number of optimizer steps (``trainer.global_step``) after which to swap. Give one of the two.
        curvature: Whether to measure before and after.
        input_from_batch: From a training batch to what ``forward`` takes: a tensor, a tuple of arguments, or a dict of
            keyword arguments. By default a tensor itself, or the first element of a tuple or list.
        registry: Where activations are looked up; ``None`` means `lit_gelu.activations.registry`.

    Attributes:
        report: What was replaced, once it was; see `lit_gelu.surgery.SwapReport`.

    Raises:
        CallbackArgumentError: If not exactly one trigger is given, or it is negative, or ``swaps`` is no mapping.
        NotAvailableYetError: If an activation has learnable parameters or buffers.
        NoMatchError: At the start of a fit, if a target matches no site of the model.
        OpaqueActivationError: If an activation was never registered: a checkpoint could not say what it is.
        SwapError: If a target cannot be read.

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
        curvature: bool = False,
        input_from_batch: Callable[[Any], Any] | None = None,
        registry: ActivationRegistry | None = None,
    ) -> None:
        if (at_epoch is None) == (at_step is None):
            raise CallbackArgumentError(
                f"ActivationSwap takes one of at_epoch and at_step, not {at_epoch=}, {at_step=}."
            )
        if (at_epoch or at_step or 0) < 0:
            raise CallbackArgumentError(f"{at_epoch=}, {at_step=} is not accepted. Count from 0.")
        self.registry = registry
        self.at_epoch = at_epoch
        self.at_step = at_step
        self.curvature = curvature
        self.input_from_batch = input_from_batch or first_of_batch
        if not isinstance(swaps, Mapping) or not swaps:
            raise CallbackArgumentError(
                f"swaps={swaps!r} is no swap. Give a mapping from targets to activations, such as {{'*': 'gelu'}}."
            )
        self.swaps = {target: self._checked(wanted) for target, wanted in swaps.items()}
        self._described = {describe_target(target, registry): spec for target, spec in self.swaps.items()}
        self.report: SwapReport | None = None
        self._record: SwapRecord | None = None
        self._live: tuple[int, SwapReport] | None = None  # as it stands in the model now, with the record's order
        self._trainer: Trainer | None = None
        self._pl_module: LightningModule | None = None

    @property
    def state_key(self) -> str:
        """What tells the state of this swap from that of others in a checkpoint."""
        return self._generate_state_key(swaps=self._described, at_epoch=self.at_epoch, at_step=self.at_step)

    @property
    def applied(self) -> bool:
        """Whether the swap was made."""
        return self._record is not None

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Learn which model is meant; a swap made in another model does not count."""
        if stage == "fit" and self.curvature:
            require_logger(trainer, "ActivationSwap(curvature=True)", ", or leave curvature out")
        if self._pl_module is not None and self._pl_module is not pl_module:
            self._record = self._live = self.report = None
        self._trainer, self._pl_module = trainer, pl_module

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the swap before any training is spent."""
        if self._record is not None:
            if self._live is None:  # its state was loaded by hand, or by a strategy that loads late
                self._restore(trainer, pl_module)
            return
        try:
            plan = self._plan(pl_module)
        except NoMatchError:
            if any(not other.applied for other in _swaps_of(trainer) if other is not self):
                return
            raise
        if not plan.rows:
            rank_zero_warn(f"{self.state_key} will change nothing: {'; '.join(map(str, plan.skipped))}.")

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn if the run ends before the swap."""
        if self.applied or is_trial_run(trainer):
            return
        epochs = trainer.max_epochs
        if self.at_epoch is not None and epochs is not None and epochs != -1 and self.at_epoch >= epochs:
            rank_zero_warn(f"{self.state_key} will not be made: this run ends after {epochs} epochs.")
        steps = steps_of_run(trainer) if pl_module.automatic_optimization else math.inf  # else a batch may take several
        if self.at_step is not None and self.at_step >= steps:
            rank_zero_warn(f"{self.state_key} will not be made: this run ends after {steps} steps.")

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Swap if this is the epoch."""
        if self.at_epoch is not None and not self.curvature and self._due(trainer):
            self._swap(trainer, pl_module, None)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Swap if this is the step, or if a resumed run is past the epoch or in the middle of it."""
        if self.applied:
            return
        # Called for every batch, so that a wrong one fails at the first batch and not at the swap.
        inputs = self.input_from_batch(batch) if self.curvature else None
        if self._due(trainer):
            self._swap(trainer, pl_module, inputs)

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Warn if the checkpoint cannot say whether its weights belong to the swapped activations."""
        if self.applied and self.state_key not in checkpoint.get("callbacks", {}):
            rank_zero_warn(f"The checkpoint says nothing of {self.state_key}, which was made in this model and stays.")

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return whether the swap was made, and what was replaced, as plain data."""
        return {"applied": self.applied, "record": self._record.to_dict() if self._record is not None else None}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give the model the activations that the checkpoint was saved with.

        Lightning has loaded the weights by now; that does no harm, since these swaps leave the weights alone.
        """
        record = SwapRecord.from_dict(state_dict["record"]) if state_dict["applied"] else None
        changed, self._record = record != self._record, record
        if changed and self._trainer is not None and self._pl_module is not None:
            self._restore(self._trainer, self._pl_module)

    def _due(self, trainer: Trainer) -> bool:
        """Return whether the trigger is reached; a resumed run may be past it."""
        if self.applied:
            return False
        if self.at_epoch is not None:
            return trainer.current_epoch >= self.at_epoch
        return self.at_step is not None and trainer.global_step >= self.at_step

    def _plan(self, pl_module: LightningModule) -> SwapPlan:
        """Return the swap, checked."""
        plan = surgery.plan_swap(pl_module, self.swaps, registry=self.registry)
        for replacement in plan.replacements:
            refuse_state(replacement.site.module, f"{replacement.site.name!r}: {replacement.site.spec}")
        return plan

    def _swap(self, trainer: Trainer, pl_module: LightningModule, inputs: Any) -> None:
        """Make the swap, remember it, tell the other callbacks, and log it."""
        plan = self._plan(pl_module)
        figures: dict[Path, float] = {}
        if self.curvature and plan.rows:
            self.report, figures = measure_swap(trainer, pl_module, plan, inputs, self.registry)
        else:
            self.report = plan.apply()
        order = 1 + max((swap._record.order for swap in _swaps_of(trainer) if swap._record is not None), default=-1)
        self._record = SwapRecord.of(self.report, trainer.current_epoch, trainer.global_step, order)
        self._live = (order, self.report)
        announce_swap(trainer, pl_module, self.report)
        rank_zero_info(self._line(self._record))
        log_figures(trainer, {(PREFIX, "replaced"): len(self.report), **figures})
        step = f"step_{self._record.step}"
        log_texts(trainer, {(PREFIX, step, row.name): f"{row.old} -> {row.new}" for row in self.report.rows})

    def _restore(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring the model to where the records of all swaps say it is: take all back, then make the recorded ones.

        All of them, because they may build on one another, while Lightning loads the callbacks' states one by one.
        """
        swaps = _swaps_of(trainer)
        live = [(swap._live, swap) for swap in swaps if swap._live is not None]
        for (_, report), swap in sorted(live, key=lambda item: item[0][0], reverse=True):
            report.undo()
            swap._live = swap.report = None
        recorded = [(swap._record, swap) for swap in swaps if swap._record is not None]
        for record, swap in sorted(recorded, key=lambda item: item[0].order):
            swap.report = record.replay(pl_module, swap.registry)
            swap._live = (record.order, swap.report) if swap.report is not None else None
        if self._record is None:
            rank_zero_info("ActivationSwap: taken back, since the checkpoint is from before it.")
        else:
            rank_zero_info(f"{self._line(self._record)} (made again from the checkpoint)")
        announce_swap(trainer, pl_module, self.report)

    def _line(self, record: SwapRecord) -> str:
        """Return one line that says what a swap replaced."""
        changes: dict[tuple[str, str], list[str]] = {}
        for name, change in record.sites.items():
            changes.setdefault(change, []).append(name)
        parts = [f"{old} -> {new} at {', '.join(names)}" for (old, new), names in changes.items()]
        return f"ActivationSwap at epoch {record.epoch}, step {record.step}: {'; '.join(parts) or 'nothing to replace'}"

    def _checked(self, wanted: Any) -> str:
        """Return an activation as a checkpoint holds it, or refuse it."""
        registry = activations.registry if self.registry is None else self.registry
        spec = registry.resolve(wanted).for_checkpoint()
        refuse_state(registry.create(spec), spec)
        return spec


def _swaps_of(trainer: Trainer) -> list[ActivationSwap]:
    """Return the swaps of a Trainer, in its order."""
    return [callback for callback in callbacks_of(trainer) if isinstance(callback, ActivationSwap)]
