"""Refusing a Trainer whose options a group cannot keep to: it would be another run, in silence."""

from typing import Any

from lightning.pytorch import Callback, callbacks
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn

from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap, LossCurvatureMonitor, OnnxExport
from lit_gelu.replicas.data.data_module import ReplicaDataModule
from lit_gelu.replicas.errors import NotReplicableError


def check_trainer(trainer: Any, refused_on_a_gpu: str) -> None:
    """Refuse a Trainer that asks for what a group cannot do.

    Args:
        trainer: It, with its data attached.
        refused_on_a_gpu: Why the group's steps cannot be made on CUDA; empty if they can.

    Raises:
        NotReplicableError: If it would mix replicas, or make another run of them than each alone.
    """
    is_fit = trainer.state.fn == TrainerFn.FITTING
    asked = {
        "gradient_clip_val": trainer.gradient_clip_val not in {None, 0},
        "accumulate_grad_batches": trainer.accumulate_grad_batches != 1,
        "devices": trainer.world_size > 1,
        "strategy": isinstance(trainer.strategy, ParallelStrategy),
        "val_check_interval": _validates_within_epochs(trainer),
        "fast_dev_run": is_fit and bool(trainer.fast_dev_run),  # these two set limit_train_batches, too
        "overfit_batches": is_fit and trainer.overfit_batches > 0,
        "limit_train_batches": is_fit and not _is_whole(trainer.limit_train_batches),
        "accelerator": trainer.strategy.root_device.type not in {"cpu", "cpu" if refused_on_a_gpu else "cuda"},
        "precision": trainer.precision not in {"32-true", "64-true"},
    }
    for name, is_asked in asked.items():
        if is_asked:
            why = f" {refused_on_a_gpu}" if name == "accelerator" and refused_on_a_gpu else ""
            raise NotReplicableError(f"Trainer({name}=...) is not accepted for a group: {_REASONS[name]}{why}")
    if is_fit:
        for callback in trainer.callbacks:
            _check_callback(callback, _makes_one_step(trainer))
    if is_fit and not isinstance(trainer.datamodule, ReplicaDataModule):
        raise NotReplicableError(
            "A group takes its batches from a ReplicaDataModule. Give Trainer.fit datamodule=ReplicaDataModule(data)."
        )


def _check_callback(callback: Callback, one_step: bool) -> None:
    """Refuse a callback that would do nothing in a group, or something else than in each run alone.

    Args:
        callback: It.
        one_step: Whether a batch of the Trainer is one step.

    Raises:
        NotReplicableError: If it is such a callback.
    """
    name = type(callback).__name__
    for kind, why in _CALLBACKS.items():
        if isinstance(callback, kind) and not (kind is callbacks.WeightAveraging and one_step):
            raise NotReplicableError(f"The callback {name} is not accepted for a group: {why}")
    for hook in _AROUND_GRADIENTS:
        given = getattr(callback, hook)
        if getattr(given, "__func__", given) is not getattr(Callback, hook):
            raise NotReplicableError(
                f"The callback {name} has a hook {hook}, and a group makes several steps of all members at once, "
                "whose gradients no callback sees. Move what it does into training_step or the optimizer, or train "
                "the modules alone."
            )


def _makes_one_step(trainer: Any) -> bool:
    return getattr(trainer.lightning_module, "steps_per_batch", 1) == 1


def _validates_within_epochs(trainer: Any) -> bool:
    """Tell whether validation is asked for by batches, of which a group's hold several steps, or by time."""
    by_time = trainer._val_check_time_interval is not None  # Lightning sets no val_check_interval then
    return not _makes_one_step(trainer) and (
        by_time or not _is_whole(trainer.val_check_interval) or trainer.check_val_every_n_epoch is None
    )


def _is_whole(given: Any) -> bool:
    """Tell whether a share of an epoch's batches is all of them: 1.0, where 1 is one batch."""
    return isinstance(given, float) and given == 1.0


_REASONS = {
    "val_check_interval": "batches are of several steps, and a run alone would validate between these. Leave it out, "
    "or give the group steps_per_batch=1.",
    "gradient_clip_val": "the norm over all replicas would mix them. Leave it out.",
    "accumulate_grad_batches": "each step of a replica is one batch of its own. Leave it out, or give larger batches.",
    "devices": "one process trains it on one device. Give every device a group of its own, in a process of its own.",
    "strategy": "a run alone takes its samples in another order with it, also on one device. Leave it out.",
    "fast_dev_run": "it would count batches of several steps. Give max_steps and limit_val_batches instead, and "
    "logger=False, enable_checkpointing=False.",
    "overfit_batches": "it would count batches of several steps, and replicas shuffle theirs. Give data of fewer "
    "samples.",
    "limit_train_batches": "it would count batches of several steps, as 1 does, which is one batch; 1.0 is all of "
    "them. Give max_steps instead.",
    "accelerator": 'its random numbers are those of runs on a CPU. Give accelerator="cpu", or noise="keys" to members '
    'that are small tasks, with executor="auto", for accelerator="cuda".',
    "precision": 'the bits of runs alone are kept in "32-true" and "64-true". Give one of them.',
}
_AROUND_GRADIENTS = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")
_CALLBACKS: dict[type[Callback], str] = {
    callbacks.WeightAveraging: "it averages weights once a batch, which is several steps. Give the group "
    "steps_per_batch=1.",
    callbacks.StochasticWeightAveraging: "it changes the learning rate of one optimizer, and each member has its own. "
    "Give members a schedule in configure_optimizers and average them with torch.optim.swa_utils, or train them alone.",
    callbacks.LearningRateMonitor: "each member has a rate of its own. Log it in validation_step: self.log('rate', "
    "self.optimizers().param_groups[0]['lr']).",
    callbacks.LearningRateFinder: "each member has a rate of its own. Make the rates those of the group's cells.",
    callbacks.BatchSizeFinder: "all members have batches of one size. Look for it with a module alone.",
    callbacks.GradientAccumulationScheduler: "each step of a replica is one batch of its own. Give larger batches.",
    callbacks.ModelPruning: "it prunes layers of one module, and a group's are in its members. Train them alone.",
    callbacks.BaseFinetuning: "it gives parameters to one optimizer, and each member has its own. Train them alone.",
    OnnxExport: "it writes one net. Export members after the fit: lit_gelu.export.export_onnx(group.members[0], path).",
    ActivationSwap: "it swaps in one net. Swap in members, in a callback of your own: lit_gelu.surgery.swap(member, "
    "plan) for member in group.members. The group follows swaps of activations without parameters; those with "
    "parameters are put in where members are built.",
    LossCurvatureMonitor: "it measures the loss of one net. Measure members after the fit with lit_gelu.curvature, or "
    "train the modules alone.",
    ActivationCurvatureMonitor: "it measures in the steps of one net. Measure members after the fit with "
    "lit_gelu.curvature, or train the modules alone.",
    callbacks.SpikeDetection: "it looks at one loss of each step. Look at group.logged in a callback of your own, and "
    "set group.active[replica] = False there.",
}
