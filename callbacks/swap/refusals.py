"""Runs in which a swap would go wrong: refused before training starts, or warned of."""

from collections.abc import Mapping

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers.multiprocessing import _MultiProcessingLauncher
from lightning.pytorch.utilities import rank_zero_warn
from torch.nn.parallel import DistributedDataParallel

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.numerics.channels import ChannelModule
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.callbacks.trainer import callbacks_of, shards_parameters
from lit_gelu.errors import UnsupportedRunError


def parameters_of_specs(specs: Mapping[str, str], registry: ActivationRegistry | None) -> list[str]:
    """Describe each activation of some specs that brings parameters, whatever the sites."""
    described = []
    for spec in dict.fromkeys(specs.values()):
        module = registry_or_default(registry).create(spec)
        waits = isinstance(module, ChannelModule) and module.needs_channels
        if waits or next(module.parameters(), None) is not None:
            described.append(f"those of {spec}")
    return described


_BEFOREHAND = "call lit_gelu.surgery.swap on the model before Trainer.fit"


def refuse_sharding(trainer: Trainer) -> None:
    """Refuse strategies that split parameters over devices."""
    strategy = trainer.strategy
    if shards_parameters(trainer) or strategy.restore_checkpoint_after_setup:
        raise UnsupportedRunError(
            f"ActivationSwap does not work with {type(strategy).__name__}: it wraps the modules before training and "
            f"loads checkpoints after that, when the swaps cannot be made again first. Use DDP or one device, or "
            f"{_BEFOREHAND}."
        )


def refuse_averaging(trainer: Trainer) -> None:
    """Refuse callbacks that average weights."""
    for callback in callbacks_of(trainer):
        if isinstance(callback, (StochasticWeightAveraging, WeightAveraging)):
            raise UnsupportedRunError(
                f"ActivationSwap does not work with {type(callback).__name__} in the same Trainer: that keeps a "
                "copy of the model as it was before the swap, with the old activations, and pairs its parameters with "
                f"the model's by their order. Leave one of the two out, or {_BEFOREHAND}."
            )


def warn_of_processes(trainer: Trainer) -> None:
    """Warn of a fit in processes of its own, from which Lightning brings back weights, but no swaps."""
    # Nothing here could bring a swap back: the main process calls no hook of a callback, before the fit or after it.
    # It is no refusal, since checkpoints, reports and exports are made in the fit's own processes, and are right.
    if isinstance(trainer.strategy.launcher, _MultiProcessingLauncher):
        rank_zero_warn(
            "ActivationSwap: this strategy trains in processes of its own (ddp_spawn, ddp_fork, ddp_notebook). From "
            "these Lightning brings back the trained weights, but not the activations: do not use the module in the "
            "main process. Build it from the run's checkpoint with lit_gelu.callbacks.load_from_checkpoint, or train "
            "with strategy='ddp' or on one device."
        )


def refuse_parameters_after_wrapping(trainer: Trainer, pl_module: LightningModule, parameters: list[str]) -> None:
    """Refuse new or removed parameters in a model that `DistributedDataParallel` has wrapped."""
    # It learns at wrapping which gradients to reduce. One that comes later would have each rank's own gradient, without
    # a word, and the ranks would part; for one that goes it would wait. Making room for new parameters before wrapping
    # would not do: until the swap they would be unused, which needs find_unused_parameters=True for the whole run.
    wrapped = isinstance(trainer.strategy, DDPStrategy) or (
        trainer.model is not pl_module and isinstance(trainer.model, DistributedDataParallel)
    )
    if wrapped and parameters:
        raise UnsupportedRunError(
            "ActivationSwap cannot add or remove parameters under DistributedDataParallel, which would not average "
            f"their gradients: {', '.join(parameters)}. Swap to and from activations without parameters, train on one "
            f"device, or {_BEFOREHAND}."
        )
