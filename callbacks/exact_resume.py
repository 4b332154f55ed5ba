"""`ExactResume`: a resumed run goes on with the random numbers and in the place in the data of the interrupted one."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerStatus
from lightning.pytorch.utilities import rank_zero_warn
from torch.utils import _pytree as pytree
from typing_extensions import override

from lit_gelu.callbacks.trainer import refuse_mixed_packages
from lit_gelu.curvature.ranks import gathered
from lit_gelu.data.resumable_loader import ResumableDataLoader
from lit_gelu.errors import CheckpointError, UnsupportedRunError
from lit_gelu.random_states import RandomState


class ExactResume(Callback):
    """Keeps in checkpoints what Lightning does not: random number generators, the place in the shuffled data.

    Together with a `lit_gelu.data.ResumableDataLoader` for training (the data modules of `lit_gelu.data` use it), a run
    that was killed and resumed from its last checkpoint (of those saved between two batches, as ``every_n_train_steps``
    saves them) ends with the very weights of one that was not::

        Trainer(callbacks=[ExactResume(), ModelCheckpoint(save_last=True, every_n_train_steps=100)])
        trainer.fit(model, data, ckpt_path="last")

    It holds the global generators of Python, NumPy and PyTorch (CPU and the present CUDA device), of every rank its
    own; they are set at the start of training, after whatever was drawn before. Swaps come out of the checkpoint by
    `ActivationSwap` itself. docs/limits.md lists what is in no checkpoint, such as gradients between the batches of one
    accumulated step; there is a warning when such a one is saved. Operations without deterministic algorithm stay what
    they are (``Trainer(deterministic=True)``).

    Raises:
        UnsupportedRunError: If the checkpoint was saved with another number of ranks or of loaders.
        CheckpointError: If what it kept in the checkpoint is damaged; `DataError` for the place in the data.
    """

    def __init__(self) -> None:
        self._trainer: Trainer | None = None
        self._states: list[dict[str, Any]] | None = None  # of a checkpoint, until training starts

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Learn where the loaders are; forget a checkpoint that another run was tested with."""
        refuse_mixed_packages(trainer, pl_module)
        self._trainer, self._states = trainer, None

    @override
    def state_dict(self) -> dict[str, Any]:
        if self._trainer is not None and _is_midway(self._trainer):
            rank_zero_warn(
                "A checkpoint is saved between the batches of one accumulated step, or within a batch, a validation or "
                "the start of an epoch (save_on_exception): what resumes from it lacks gradients, leaves out a batch "
                "or draws other numbers. Save after optimizer steps: every_n_train_steps."
            )
        loaders = [loader.state_dict() for loader in self._loaders()]
        return {"ranks": gathered({"generators": RandomState.now().plain(), "loaders": loaders})}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        ranks = state_dict.get("ranks") or None
        kinds = {"generators": dict, "loaders": list}
        if not isinstance(ranks, list) or not all(
            isinstance(rank, dict) and all(isinstance(rank.get(name), kind) for name, kind in kinds.items())
            for rank in ranks
        ):
            raise CheckpointError(
                "What ExactResume kept in the checkpoint is damaged: it has no generators and loaders of each rank. "
                "Resume from another checkpoint, or leave ExactResume out."
            )
        self._states = ranks

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        states, self._states = self._states, None
        if states is None:
            return
        if len(states) != trainer.world_size:
            raise UnsupportedRunError(
                f"The checkpoint has the random states of {len(states)} ranks, and this run has {trainer.world_size}. "
                "Use as many, or leave ExactResume out: it cannot be the same run."
            )
        state = states[trainer.global_rank]
        # Lightning gives a loader its state only if nothing has asked for the loader before; a configure_optimizers
        # that uses estimated_stepping_batches has.
        loaders, done = self._loaders(), trainer.fit_loop.batch_idx + 1
        if not trainer.fit_loop.restarted_mid_epoch or not 0 < done < trainer.num_training_batches:
            for loader in loaders:
                loader.start_anew()
        elif len(loaders) != len(state["loaders"]):
            raise UnsupportedRunError(
                f"The checkpoint is from within an epoch that used {len(state['loaders'])} ResumableDataLoader, and "
                f"this run has {len(loaders)}. Use the same training data, or leave ExactResume out."
            )
        else:
            for loader, place in zip(loaders, state["loaders"], strict=True):
                loader.load_state_dict(place)
        RandomState.of_plain(state["generators"]).restore()

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go through all data, whatever was loaded: Lightning calls this for new epochs only."""
        for loader in self._loaders():
            loader.start_anew()

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Count the epoch that Lightning begins without saying so, behind a resume from the last batch of another."""
        # Lightning 2.6 takes the next checkpoint for one from the middle of a validation, or begins its epoch anew.
        if batch_idx == 0:
            trainer.fit_loop.epoch_loop.val_loop.batch_progress.total.reset()
            epochs = trainer.fit_loop.epoch_progress
            if epochs.total.ready == epochs.total.completed:
                epochs.increment_ready()
                epochs.increment_started()

    def _loaders(self) -> list[ResumableDataLoader[Any]]:
        loaders = pytree.tree_leaves(self._trainer.train_dataloader if self._trainer is not None else None)
        return [loader for loader in loaders if isinstance(loader, ResumableDataLoader)]


def _is_midway(trainer: Trainer) -> bool:
    """Return whether no optimizer step has used the last batch's gradients, or what has begun is not over."""
    loop: Any = trainer.fit_loop  # its trackers have fields that their annotations do not
    done = loop.batch_idx + 1
    if done > 0 and done % trainer.accumulate_grad_batches != 0 and not trainer.is_last_batch:
        return True
    # A batch, the start of an epoch or, behind an error, a validation.
    batches, epochs = loop.epoch_loop.batch_progress.current, loop.epoch_progress.current
    begun = batches.ready > batches.processed or epochs.ready > epochs.started
    return begun or (trainer.state.status == TrainerStatus.INTERRUPTED and trainer.validating)
