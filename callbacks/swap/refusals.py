"""Runs in which a swap would go wrong: refused before training starts, or warned of."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers.multiprocessing import _MultiProcessingLauncher
from lightning.pytorch.utilities import rank_zero_warn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.numerics.channels import ChannelModule
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.arguments import is_number
from lit_gelu.callbacks.trainer_facts import callbacks_of, shards_parameters
from lit_gelu.errors import ArgumentError, UnsupportedRunError
from lit_gelu.surgery import (
    SwapPlan,
)


def parameters_of_swap(plan: SwapPlan) -> list[str]:
    """Return the names of the parameters that would come or go."""
    return list(dict.fromkeys([*plan.removed_parameters, *plan.new_parameters]))


def parameters_of_specs(specs: Mapping[str, str], registry: ActivationRegistry | None) -> list[str]:
    """Describe each activation of some specs that brings parameters, whatever the sites."""
    registry = registry_or_default(registry)
    return [f"those of {spec}" for spec in dict.fromkeys(specs.values()) if _has_parameters(registry.create(spec))]


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters()) or (isinstance(module, ChannelModule) and module.needs_channels)


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


def trains_elsewhere(trainer: Trainer) -> bool:
    """Return whether a fit runs in processes of its own, from which Lightning brings back weights, but no swaps."""
    return isinstance(trainer.strategy.launcher, _MultiProcessingLauncher)


def warn_of_activations_before_fit(trainer: Trainer, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Say where the module in the main process has other activations than were trained, and how to get those."""
    # Nothing here could bring a swap back: the main process calls no hook of a callback, before the fit or after it.
    # It is no refusal, since checkpoints, reports and exports are made in the fit's own processes, and are right.
    # It comes at the end: before, nobody knows whether a swap will be made or a checkpoint take one back.
    sites = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if not sites:
        return
    saved = "" if trainer.checkpoint_callbacks else " No callback of this Trainer saves one: add ModelCheckpoint()."
    rank_zero_warn(
        "ActivationSwap: this strategy trains in processes of its own (ddp_spawn, ddp_fork, ddp_notebook). From these "
        "Lightning brings back the trained weights, but not the activations: the module in the main process has the "
        f"activations from before the fit, which are others at {', '.join(sites)}. Do not use it. Build the module "
        "from the run's checkpoint with lit_gelu.callbacks.load_from_checkpoint, or train with strategy='ddp' or on "
        f"one device.{saved}"
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


def check_numbers(learning_rate: float | None, weight_decay: float) -> None:
    """Refuse numbers out of range."""
    if learning_rate is not None and not (is_number(learning_rate) and learning_rate > 0):
        raise ArgumentError(f"{learning_rate=} is not accepted. Give a positive number, or None.")
    if not (is_number(weight_decay) and weight_decay >= 0):
        raise ArgumentError(f"{weight_decay=} is not accepted. Give a finite number from 0.")
