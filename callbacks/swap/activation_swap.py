"""`ActivationSwap`: replaces activations of a model in the course of its training."""

from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from typing_extensions import override

from lit_gelu.activations import ActivationRegistry
from lit_gelu.callbacks.swap.history import LiveSwap, SwapRecord
from lit_gelu.callbacks.swap.measurement import PREFIX, first_of_batch, measure_swap, require_forward
from lit_gelu.callbacks.swap.member import RestorableSwap, announce_swap
from lit_gelu.callbacks.swap.refusals import (
    check_numbers,
    parameters_of_specs,
    parameters_of_swap,
    refuse_averaging,
    refuse_parameters_after_wrapping,
    refuse_sharding,
    trains_elsewhere,
    warn_of_activations_before_fit,
)
from lit_gelu.callbacks.swap.run import SwapRun
from lit_gelu.callbacks.swap.schedule import MetricTrigger, Mode, SwapSchedule
from lit_gelu.callbacks.trainer_facts import is_trial_run, logged_step, refuse_mixed_packages
from lit_gelu.callbacks.trainer_loggers import Path, log_figures, log_texts, require_logger
from lit_gelu.errors import SwapError
from lit_gelu.surgery import (
    OnObstacle,
    SwapReport,
)


class ActivationSwap(RestorableSwap):
    """Replaces activations once: at the start of an epoch, before an optimizer step, or when a metric says so.

    *What is replaced* is said as to `lit_gelu.surgery.swap`. Targets that match nothing and activations that are not
    accepted are refused before training starts. (If the Trainer has another `ActivationSwap` that is still to come, its
    result may be what a target waits for; then only the swap itself refuses.)

    *Learnable parameters* that a new activation brings get a group of their own in the optimizer that has the
    neighbouring weights: options and schedule are theirs, without weight decay. Parameters that go leave the optimizer
    with their state.

    *What is logged.* One line; the figure ``activation_swap/replaced``; and for every site a hyperparameter
    (in TensorBoard a text) ``activation_swap/step_<step>/<site>`` = "old -> new", with the step as loggers number it.
    With ``curvature=True`` also the statistics of every replaced site, ``activation_swap/<site>/before/<statistic>``
    and ``.../after/<statistic>``, and the jump of the model's output, ``activation_swap/jump/relative`` = ||new - old||
    / ||old|| and ``activation_swap/jump/max_absolute``: from two forward passes in evaluation mode on the batch at
    hand, which leave no trace in the training.

    *Checkpoints*, also those saved with ``save_weights_only=True``, say which swaps were made, of which sites. Whoever
    loads one (``fit``, ``validate``, ``test`` or ``predict`` with ``ckpt_path``, this callback in the Trainer) gets the
    activations it was trained with before the weights are loaded: the swap is made again, or taken back if the
    checkpoint is from before it. A run that resumes beyond the trigger from a checkpoint that knows nothing of swaps
    makes it at once. A checkpoint with other activations than these swaps lead to is refused. Without a Trainer:
    `lit_gelu.callbacks.load_from_checkpoint`. For a run that goes on bit by bit after a kill, see
    `lit_gelu.callbacks.ExactResume`.

    *Not possible*, and refused before training: with FSDP, DeepSpeed or model parallelism, and beside callbacks that
    average weights; under DDP, to or from activations with learnable parameters (others are fine there).
    ``torch.compile`` builds new graphs for a new activation.

    *In processes of their own*, with the strategies ``ddp_spawn``, ``ddp_fork`` and ``ddp_notebook``, the swap is made
    and saved there, but Lightning does not bring it back to the module that was given to ``fit``: there is a warning at
    the end. Build the module from the run's checkpoint with `lit_gelu.callbacks.load_from_checkpoint`.

    Other callbacks learn of the swap through `lit_gelu.callbacks.ActivationSwapListener`.

    Args:
        swaps: From target to activation, such as ``{"activation:relu": "gelu", "head.*": "silu"}``. In Python a target
            may also be a module class or ``by_activation(...)``.
        at_epoch: The epoch (from 0) at whose start to swap; with ``curvature=True`` just before its first batch.
        at_step: The number of optimizer steps (``trainer.global_step``) after which to swap.
        curvature: Whether to measure before and after.
        input_from_batch: From a training batch to what ``forward`` takes: a tensor, a tuple of arguments, or a dict of
            keyword arguments. By default a tensor itself, or the first element of a tuple or list.
        registry: Where activations are looked up; ``None`` means `lit_gelu.activations.registry`.
        when: A logged metric, such as ``"val_loss"``; the swap is made before the batch after the one it fires at.
            Every rank takes the mean over all ranks. Give one of ``at_epoch``, ``at_step`` and ``when``.
        mode: Whether a smaller (``"min"``) or larger (``"max"``) metric is better.
        patience: It fires at this many checks in a row without improvement.
        threshold: By how much a value must be better than the best so far to be an improvement, in its unit.
        reaches: Fire at the first check as good as this value instead.
        check_on_train_epoch_end: When to look at the metric; ``None`` means after each validation, or at the end of the
            training epoch where there is none.
        learning_rate: Base learning rate of new parameters; where a scheduler has changed that of the neighbouring
            weights, this one is changed by the same factor. ``None`` means the neighbouring weights'.
        weight_decay: Weight decay of new parameters.
        strict_activations: Whether a checkpoint with other activations is refused; else there is a warning.
        input_sample: What ``forward`` takes: a tensor, a tuple, a dict, or ``"example_input_array"`` for the module's.
            With it, calls of functions are sites too, as in `lit_gelu.surgery.find_sites`; they have no statistics.
        on_obstacle: What becomes of a selected site that cannot be swapped: ``"refuse"`` stops the run before training,
            ``"skip"`` leaves it as it is, with a warning.

    Attributes:
        report: What was replaced, once it was; see `lit_gelu.surgery.SwapReport`.

    Raises:
        ArgumentError: If not exactly one trigger is given, a number is out of range, or ``swaps`` no mapping;
            at the start of a fit, if ``curvature=True`` and the module has no ``forward``.
        UnsupportedRunError: At the start of a fit, if it is not possible in this run.
        SwapError: At the start of a fit, if a target matches no site of the model.
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
        *,
        when: str | None = None,
        mode: Mode = "min",
        patience: int = 3,
        threshold: float = 0.0,
        reaches: float | None = None,
        check_on_train_epoch_end: bool | None = None,
        learning_rate: float | None = None,
        weight_decay: float = 0.0,
        strict_activations: bool = True,
        input_sample: Any = None,
        on_obstacle: OnObstacle = "refuse",
    ) -> None:
        check_numbers(learning_rate, weight_decay)
        trigger = MetricTrigger(mode, patience, threshold, reaches)
        schedule = SwapSchedule(at_epoch, at_step, when, trigger, check_on_train_epoch_end)
        super().__init__(
            swaps,
            schedule,
            registry,
            strict_activations=strict_activations,
            input_sample=input_sample,
            on_obstacle=on_obstacle,
        )
        self.curvature = curvature
        self.input_from_batch = input_from_batch or first_of_batch
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        # What the module has in the main process, if the fit runs in others. The first swap of the Trainer keeps it.
        self._given: Mapping[str, Any] | None = None

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot work, and learn which model is meant."""
        refuse_mixed_packages(trainer, pl_module)
        if stage == "fit":
            refuse_sharding(trainer)
            refuse_averaging(trainer)
            if self.curvature:
                require_logger(trainer, "ActivationSwap(curvature=True)", ", or leave curvature out")
                require_forward(pl_module)
        self.connect(trainer, pl_module)
        run = self._running()
        # A checkpoint is loaded later, so that what is there now is so in the main process too.
        self._given = (
            run.activations() if stage == "fit" and run.swaps[0] is self and trains_elsewhere(trainer) else None
        )

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the swap before any training is spent, and give the optimizers the groups of the checkpoint."""
        run = self._running()
        if run.swaps[0] is self:
            run.connect_optimizers()
        if self._loaded_by_hand:
            with run.parameters_tracked(self.learning_rate, self.weight_decay):
                run.restore([self])
        if self.record is None:
            self._check(run)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn if the run ends before the swap."""
        if not self.applied:
            self.schedule.warn_if_beyond_end(trainer, pl_module, self.state_key)

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Swap if this is the epoch; a resumed run may first have to validate at the end of the one before."""
        at_start = self.schedule.at_epoch is not None and not self.curvature and not trainer.fit_loop.restarting
        if at_start and self._due(trainer):
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
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn if the module in the main process is left with other activations than it was trained with."""
        if self._given is not None and not is_trial_run(trainer):
            warn_of_activations_before_fit(trainer, self._given, self._running().activations())

    def _running(self) -> SwapRun:
        if self.run is None:
            raise RuntimeError("Lightning calls setup before every other hook.")
        return self.run

    def _due(self, trainer: Trainer) -> bool:
        return not self.applied and self.schedule.is_due(trainer)

    def _check(self, run: SwapRun) -> None:
        """Refuse a swap that could not be made."""
        parameters = parameters_of_specs(self.swaps, self.registry)
        try:
            plan = self.plan(run.pl_module)
        except SwapError:
            if all(other.applied for other in run.swaps if other is not self):
                raise
        else:
            parameters = parameters_of_swap(plan)
            for note in (*plan.notes, *(row for row in plan.skipped if row.obstacle)):
                rank_zero_warn(f"{self.state_key}: {note}")
            if not plan.rows:
                rank_zero_warn(f"{self.state_key} will change nothing: {'; '.join(map(str, plan.skipped))}.")
        self._check_parameters(run, parameters)

    def _check_parameters(self, run: SwapRun, parameters: list[str]) -> None:
        """Refuse parameters that come or go where they must not."""
        refuse_parameters_after_wrapping(run.trainer, run.pl_module, parameters)
        if parameters and run.groups is not None:
            run.groups.check()

    def _swap(self, trainer: Trainer, pl_module: LightningModule, inputs: Any) -> None:
        """Make the swap, remember it, tell the other callbacks, and log it."""
        run = self._running()
        plan = self.plan(pl_module)
        self._check_parameters(run, parameters_of_swap(plan))
        figures: dict[Path, float] = {}

        def apply() -> SwapReport:
            if not (self.curvature and plan.rows):
                return plan.apply()
            report, measured = measure_swap(trainer, pl_module, plan, inputs, self.registry)
            figures.update(measured)
            return report

        with run.parameters_tracked(self.learning_rate, self.weight_decay):
            self.live = LiveSwap(run.next_order(), apply())
        self.report = self.live.report
        self.record = SwapRecord.of(self.live, trainer.current_epoch, trainer.global_step, logged_step(trainer))
        announce_swap(trainer, pl_module, self.report)
        rank_zero_info(self.record.line())
        log_figures(trainer, {(PREFIX, "replaced"): len(self.report), **figures})
        step = f"step_{self.record.logged_step}"
        log_texts(trainer, {(PREFIX, step, row.name): f"{row.old} -> {row.new}" for row in self.report.rows})
