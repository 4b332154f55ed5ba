"""`ExactResume`: a resumed run goes on as the interrupted one would have."""

from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.plugins.precision import DoublePrecision
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.utils import _pytree as pytree
from typing_extensions import override

from lit_gelu.callbacks.checkpoint_file import REPLICAS_KEY
from lit_gelu.callbacks.logged_sums import (
    check_metrics,
    check_sums,
    forget,
    logged_metrics,
    logged_sums,
    put_back,
    put_metrics_back,
)
from lit_gelu.callbacks.trainer_facts import callbacks_of, refuse_mixed_packages, shards_parameters
from lit_gelu.curvature.ranks import gathered, is_one_of_several
from lit_gelu.data.resumable_loader import ResumableDataLoader, random_states, set_random_states
from lit_gelu.errors import CheckpointError, UnsupportedRunError, shown

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

_DAMAGED = "What ExactResume kept in the checkpoint is damaged: "
_REMEDY = "Resume from another checkpoint, or leave ExactResume out."


class ExactResume(Callback):
    """Keeps in checkpoints what Lightning does not: random number generators, the place in the shuffled data.

    Together with a `lit_gelu.data.ResumableDataLoader` for training (the data modules of `lit_gelu.data` use it), a run
    that was killed and resumed from its last checkpoint ends with the very weights of one that was not::

        Trainer(callbacks=[ExactResume(), ModelCheckpoint(save_last=True, every_n_train_steps=100)])
        trainer.fit(model, data, ckpt_path="last")

    or, in a configuration of ``lit-gelu fit`` (`examples/digits_relu_to_gelu.yaml`, resumed with ``--ckpt_path``)::

        callbacks:
          - class_path: lit_gelu.callbacks.ExactResume

    It holds the global generators of Python, NumPy and PyTorch (CPU and the present CUDA device), of every rank its
    own; they are set at the start of training, after whatever was drawn before. From a checkpoint of an epoch's last
    batch, the epoch's validation and end follow, which Lightning would leave out.

    A checkpoint from between the batches of one step (``accumulate_grad_batches``) holds the gradients so far, of
    every rank its own, and is larger by them; under manual optimization it holds all gradients there are.
    `ModelCheckpoint` makes such checkpoints by time (``train_time_interval``) and at the first batch after a resume.
    Where the strategy shards parameters the gradients are left out, with a warning. An accumulation that changes with
    the epoch (`GradientAccumulationScheduler`) goes on as it was.

    It holds what ``self.log(..., on_epoch=True)`` has added up in the epoch, so that its means are those of the whole
    epoch; not the states of torchmetrics' objects, which are the module's, nor sums over a ``sync_dist_group``.

    It holds the latest values of all that was logged, as callbacks see them: what monitors a metric of training goes
    on in a validation right behind the resume, too.

    It does not hold generators that a model or data set owns. Lightning does not step a `ReduceLROnPlateau` at the end
    of the epoch in which a run is resumed; this callback has it stepped, unless the checkpoint is of a version that did
    not hold the value. One with ``interval="step"`` misses the step of the last batch. An epoch that ``max_steps`` cut
    off goes on, where there are more steps now.
    Operations without deterministic algorithm stay what they are (``Trainer(deterministic=True)``).

    Raises:
        UnsupportedRunError: If the checkpoint was saved with another number of ranks, of loaders, or has gradients of
            parameters that the model does not have; if a `GradientAccumulationScheduler` comes after it in the
            Trainer's list of callbacks.
        CheckpointError: If what it kept in the checkpoint is damaged.
    """

    def __init__(self) -> None:
        self._trainer: Trainer | None = None
        self._states: list[dict[str, Any]] | None = None
        self._is_of_a_group = False  # which sees to its own place in the epoch
        self._has_put_back = False  # sums of an epoch that has not ended since
        self._was_cut_off = False  # the epoch that the checkpoint is of, by max_steps
        self._has_metrics = False  # whether the checkpoint did hold them
        self._put_back: dict[str, Tensor] = {}  # those that nothing has logged since
        self._begun, self._has_validated = 0, False  # epochs since the resume; and whether one of them validated
        self._conversion: RemovableHandle | None = None  # to float64, before weights are loaded

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Learn where the loaders are."""
        refuse_mixed_packages(trainer, pl_module)
        check_accumulation_schedule(trainer, self)
        self._trainer = trainer
        self._states, self._was_cut_off = None, False  # of a checkpoint that another run was tested with
        plugin = trainer.precision_plugin
        if stage == "fit" and isinstance(plugin, DoublePrecision):
            # Lightning converts the module behind loading: weights of a checkpoint would lose half of their digits.
            untyped: Any = pl_module
            self._conversion = untyped.register_load_state_dict_pre_hook(lambda own, *_: plugin.convert_module(own))

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let what is loaded from now on be loaded as it is."""
        self._end_conversion()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave no hook on the module."""
        self._end_conversion()

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the states of all ranks; called on all of them."""
        loaders, gradients = [loader.state_dict() for loader in self._loaders()], self._gradients()
        sums = {} if self._trainer is None else logged_sums(self._trainer)
        metrics = None if self._trainer is None else logged_metrics(self._trainer)
        if is_one_of_several():
            gradients = {name: gradient.cpu() for name, gradient in gradients.items()}
        kept = {"generators": random_states(), "loaders": loaders, "gradients": gradients}
        cut_off = self._trainer is not None and is_cut_off(self._trainer)
        return {"ranks": gathered({**kept, "sums": sums, "metrics": metrics, "cut_off": cut_off})}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the states until training starts."""
        self._states = _checked_states(state_dict)

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Let Lightning see a checkpoint of an epoch's last batch as one from just before the epoch's validation."""
        self._is_of_a_group = REPLICAS_KEY in checkpoint
        if self.state_key in checkpoint.get("callbacks", {}) and not self._is_of_a_group:
            states = _checked_states(checkpoint["callbacks"][self.state_key])
            leave_epoch_unfinished(checkpoint["loops"]["fit_loop"])
            self._was_cut_off = any(state["cut_off"] for state in states)
            if self._was_cut_off:
                go_on_within_epoch(checkpoint["loops"]["fit_loop"])

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the generators, and the loaders, to where the checkpoint found them."""
        states, self._states = self._states, None
        if states is None:
            return
        if len(states) != trainer.world_size:
            raise UnsupportedRunError(
                f"The checkpoint has the random states of {len(states)} ranks, and this run has {trainer.world_size}. "
                "Use as many, or leave ExactResume out: it cannot be the same run."
            )
        state = states[trainer.global_rank]
        self._set_loaders(trainer, state["loaders"])
        set_random_states(state["generators"])
        resume_accumulation(trainer)
        self._set_gradients(trainer, pl_module, state["gradients"])
        self._has_metrics = state["metrics"] is not None
        self._put_back = put_metrics_back(trainer, pl_module, state["metrics"] or {})
        self._begun, self._has_validated = 0, False
        if not self._is_of_a_group:
            put_back(trainer, pl_module, state["sums"])
            self._has_put_back = True
            if self._has_metrics:
                step_on_plateau(trainer)
            go_on_behind_a_batch(trainer, is_counted=self._was_cut_off)

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go through all data, whatever was loaded: Lightning calls this for new epochs only."""
        for loader in self._loaders():
            loader.start_anew()
        if self._has_put_back:
            forget(trainer)
            self._has_put_back = False
        self._begun += 1
        if self._has_validated:
            self._warn_of_old_metrics(trainer)

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count a validation that Lightning took for one that had begun: else one behind it would be made twice."""
        counts: Any = trainer.fit_loop.epoch_loop.val_loop.batch_progress.total
        if trainer.state.fn == TrainerFn.FITTING:
            counts.ready = counts.started = counts.processed = counts.completed

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that an epoch that began behind the resume has validated."""
        self._has_validated = self._has_validated or (self._begun > 0 and not trainer.sanity_checking)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the sums to Lightning, which forgets them behind this hook."""
        self._has_put_back = False
        if trainer.fit_loop.restarting and not self._is_of_a_group and self._has_metrics:
            trainer.fit_loop._restarting = False  # else Lightning would leave out what looks at a metric

    def _warn_of_old_metrics(self, trainer: Trainer) -> None:
        """Say once what is looked at and a whole epoch has not logged: Lightning would end a new run with an error."""
        now, put_back = trainer.callback_metrics, self._put_back
        self._put_back = {}
        old = [name for name in sorted(_monitors(trainer)) if name in put_back and now.get(name) is put_back[name]]
        if old:
            rank_zero_warn(
                f"{', '.join(map(repr, old))} is of before the run was resumed: nothing has logged it in a whole epoch "
                "since. What monitors it goes on with the old value. Log it, or monitor another."
            )

    def _set_loaders(self, trainer: Trainer, states: list[dict[str, Any]]) -> None:
        """Let the loaders go on within the epoch."""
        # Lightning gives a loader its state only if nothing has asked for the loader before; a configure_optimizers
        # that uses estimated_stepping_batches has.
        loaders = self._loaders()
        done = trainer.fit_loop.batch_idx + 1
        if not trainer.fit_loop.restarted_mid_epoch or done == 0:
            for loader in loaders:
                loader.start_anew()
            return
        if len(loaders) != len(states):
            raise UnsupportedRunError(
                f"The checkpoint is from within an epoch that used {len(states)} ResumableDataLoader, and this run has "
                f"{len(loaders)}. Use the same training data, or leave ExactResume out."
            )
        for loader, state in zip(loaders, states, strict=True):
            if done < trainer.num_training_batches:
                loader.load_state_dict(state)
            else:
                loader.skip_pass()

    def _end_conversion(self) -> None:
        if self._conversion is not None:
            self._conversion.remove()
            self._conversion = None

    def _gradients(self) -> dict[str, Tensor]:
        """Return what a checkpoint needs of the gradients."""
        if self._trainer is None or self._trainer.lightning_module is None:
            return {}
        gradients = pending_gradients(self._trainer)
        if gradients and shards_parameters(self._trainer):
            rank_zero_warn(
                "A checkpoint is saved between the batches of one accumulated step, and under "
                f"{type(self._trainer.strategy).__name__} ExactResume does not keep the gradients so far: a run that "
                "resumes from it will not go on as this one. Save after optimizer steps."
            )
            return {}
        return gradients

    def _set_gradients(self, trainer: Trainer, pl_module: LightningModule, gradients: dict[str, Tensor]) -> None:
        """Give the parameters the gradients of the batches that the next step counts already."""
        set_gradients(pl_module, gradients)
        if pl_module.automatic_optimization and is_between_batches_of_a_step(trainer) and not gradients:
            rank_zero_warn(
                "The checkpoint is from between the batches of one accumulated step and has no gradients of those that "
                "were done: the first step will lack them. Resume from a checkpoint that was saved after a step."
            )

    def _loaders(self) -> list[ResumableDataLoader[Any]]:
        """Return the training loaders, as far as they can be resumed."""
        loaders = pytree.tree_leaves(self._trainer.train_dataloader if self._trainer is not None else None)
        return [loader for loader in loaders if isinstance(loader, ResumableDataLoader)]


def _checked_states(state_dict: object) -> list[dict[str, Any]]:
    """Return the states of the ranks out of a checkpoint, if they are of the types that they were saved with."""
    ranks = state_dict.get("ranks") if isinstance(state_dict, dict) else None
    if not isinstance(ranks, list) or not all(isinstance(rank, dict) for rank in ranks):
        raise CheckpointError(f"{_DAMAGED}it has no list of ranks. {_REMEDY}")
    states = [{"gradients": {}, "sums": {}, "metrics": None, "cut_off": False, **rank} for rank in ranks]
    kinds = {"generators": dict, "loaders": list, "gradients": dict, "sums": dict, "cut_off": bool}
    for key, kind in kinds.items():
        if not all(isinstance(state.get(key), kind) for state in states):
            raise CheckpointError(f"{_DAMAGED}a rank's {key} are missing, or no {kind.__name__}. {_REMEDY}")
    for state in states:
        check_sums(state["sums"])
        check_metrics(state["metrics"])
    return states


def _monitors(trainer: Trainer) -> set[str]:
    """Return the metrics that callbacks and schedulers look at."""
    of_callbacks = (getattr(callback, "monitor", None) for callback in callbacks_of(trainer))
    names = (*of_callbacks, *(config.monitor for config in trainer.lr_scheduler_configs))
    return {name for name in names if isinstance(name, str)}


def step_on_plateau(trainer: Trainer) -> None:
    """Step what looks at a metric, of a checkpoint of an epoch's end: that was to come behind it."""
    loop, configs = trainer.fit_loop, [config for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]
    are_known = all(config.monitor in trainer.callback_metrics for config in configs if config.strict)
    if not configs or not are_known or not (loop.restarted_on_epoch_end or loop.resumed_on_epoch_end):
        return
    counts: Any = loop.epoch_progress.current
    completed, counts.completed = counts.completed, counts.processed - 1  # Lightning counts the epoch by now
    loop.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
    counts.completed = completed


def is_cut_off(trainer: Trainer) -> bool:
    """Tell whether ``max_steps`` has ended the run within an epoch."""
    batches = trainer.fit_loop.epoch_loop.batch_progress
    is_over: bool = trainer.global_step >= trainer.max_steps != -1
    return is_over and batches.current.ready > 0 and not batches.is_last_batch


def leave_epoch_unfinished(fit_loop: dict[str, Any]) -> None:
    """Change a loop's saved state, if it is from the hooks after an epoch's last batch: only that batch is over."""
    # Lightning would take the epoch as over. Now it takes the batch as over, and the validation as begun, with no batch
    # done.
    epoch, batch = fit_loop["epoch_progress"]["current"], fit_loop["epoch_loop.batch_progress"]
    after_batch = batch["current"]["ready"] == batch["current"]["processed"] == batch["current"]["completed"] + 1
    if not (batch["is_last_batch"] and after_batch and epoch["started"] == epoch["processed"] + 1):
        return
    for count in ("total", "current"):
        batch[count]["completed"] += 1
        validation = fit_loop["epoch_loop.val_loop.batch_progress"][count]
        validation.update({"ready": 1, "started": 1, "processed": 0, "completed": 0})


def go_on_within_epoch(fit_loop: dict[str, Any]) -> None:
    """Change a loop's saved state, whose epoch ``max_steps`` has cut off: the epoch is not over."""
    epoch = fit_loop["epoch_progress"]
    if epoch["current"]["ready"] == epoch["current"]["processed"]:
        for count in epoch.values():
            count["processed"] = count["completed"] = count["started"] - 1


def go_on_behind_a_batch(trainer: Trainer, *, is_counted: bool = False) -> None:
    """Let a run that was left in the hooks after a batch validate, if that is due, and count that batch's step once."""
    # Lightning would leave out a validation within the epoch. Behind an epoch's last batch, `leave_epoch_unfinished`
    # has Lightning take the batch as over, and then nothing counts its step for the loggers.
    fit_loop, loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    fetcher = fit_loop._data_fetcher
    if fetcher is None or not loop.restarting or fit_loop.restarted_on_epoch_start:
        return
    if not fit_loop.restarted_mid_epoch:
        if loop.batch_progress.is_last_batch:
            leave_epoch_behind(fit_loop)
        return
    is_due = loop.batch_idx >= 0 and loop._should_check_val_fx(fetcher)  # a group may count no batch of this epoch yet
    if is_due and loop.restarted_on_train_batch_end:
        loop.batch_progress.increment_completed()
        progress: Any = loop.val_loop.batch_progress
        for counts in (progress.total, progress.current):
            counts.ready = counts.started = 1  # begun, and no batch done
            counts.processed = counts.completed = 0
        loop.update_restart_stage()
    elif is_due and is_counted:
        loop._batches_that_stepped -= 1  # Lightning counts the step behind a validation
    elif not is_due and loop.restarted_on_last and loop.batch_progress.is_last_batch:
        loop._batches_that_stepped += 1


def leave_epoch_behind(fit_loop: Any) -> None:
    """Let a run that was left in the hooks at an epoch's end, or behind them, begin the next epoch."""
    # Lightning does so with max_epochs. With max_steps it would take one more batch in that epoch, or none, and call
    # the hooks of its end once more.
    if fit_loop.restarted_on_epoch_end:
        fit_loop.epoch_progress.increment_completed()
    fit_loop.epoch_loop.restarting = False
    for loop in (fit_loop.epoch_loop, fit_loop):
        loop.on_iteration_done()  # nothing is left of the resume


def leave_epoch_finished(fit_loop: dict[str, Any]) -> None:
    """Change a loop's saved state, if it is from the hooks at an epoch's end: the epoch is over then."""
    # With max_steps and no validation, Lightning would take another batch in that epoch.
    epoch, batch = fit_loop["epoch_progress"], fit_loop["epoch_loop.batch_progress"]
    current = batch["current"]
    if epoch["current"]["started"] == epoch["current"]["processed"] == epoch["current"]["completed"] + 1:
        for count in ("total", "current"):
            epoch[count]["completed"] += 1
        current.update(dict.fromkeys(current, 0))
        batch["is_last_batch"] = False


def is_between_batches_of_a_step(trainer: Trainer) -> bool:
    """Return whether a batch is over whose gradients no optimizer step has used."""
    loop = trainer.fit_loop.epoch_loop
    batches = loop.batch_progress.current
    processed: int = batches.processed  # type: ignore[attr-defined]  # Lightning's type is that of a lesser tracker
    if batches.ready == processed:
        return loop._should_accumulate()
    return processed % trainer.accumulate_grad_batches != 0  # the next batch has begun


def pending_gradients(trainer: Trainer) -> dict[str, Tensor]:
    """Return the gradients by name that the next optimizer step will use, of this rank; none between two steps."""
    # Nothing says what becomes of gradients under manual optimization: there all of them are returned.
    module = trainer.lightning_module
    if module.automatic_optimization and not is_between_batches_of_a_step(trainer):
        return {}
    return {name: p.grad.detach() for name, p in module.named_parameters() if p.grad is not None}


def set_gradients(module: LightningModule, gradients: dict[str, Tensor]) -> None:
    """Give parameters the gradients that `pending_gradients` returned."""
    parameters = dict(module.named_parameters())
    for name, gradient in gradients.items():
        parameter = parameters.get(name)
        if not isinstance(gradient, Tensor):
            raise UnsupportedRunError(
                f"The checkpoint is damaged: its gradient of {shown(name)} is {shown(gradient)}. Resume from another."
            )
        if parameter is None or parameter.shape != gradient.shape:
            found = "has no such parameter" if parameter is None else f"has it as {list(parameter.shape)}"
            raise UnsupportedRunError(
                f"The checkpoint is from between the batches of one step and holds a gradient of {name!r} "
                f"({list(gradient.shape)}); this model {found}. Resume with the model that was saved."
            )
        parameter.grad = gradient.to(parameter.device)


def check_accumulation_schedule(trainer: Trainer, callback: Callback) -> None:
    """Refuse a `GradientAccumulationScheduler` that starts after a callback which calls `resume_accumulation`."""
    # That scheduler refuses a Trainer that accumulates already when it starts.
    callbacks = callbacks_of(trainer)
    if any(isinstance(other, GradientAccumulationScheduler) for other in callbacks[callbacks.index(callback) :]):
        raise UnsupportedRunError(
            f"GradientAccumulationScheduler comes after {type(callback).__name__} in the Trainer's callbacks. Put it "
            f"before: {type(callback).__name__} sets the accumulation of the epoch in which a run is resumed."
        )


def resume_accumulation(trainer: Trainer) -> None:
    """Accumulate as a `GradientAccumulationScheduler` says for the epoch at hand."""
    # The scheduler says so as an epoch starts, and Lightning starts none where it resumes within one.
    for callback in callbacks_of(trainer):
        if isinstance(callback, GradientAccumulationScheduler):
            trainer.accumulate_grad_batches = callback.get_accumulate_grad_batches(trainer.current_epoch)
