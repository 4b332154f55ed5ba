"""What the callbacks ask of a Trainer that Lightning's own types do not say."""

import math
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.precision import DoublePrecision, HalfPrecision
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from torch import Tensor
from torch.utils import _pytree as pytree

from lit_gelu.errors import UnsupportedRunError


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """Return a Trainer's callbacks, in the order in which it calls them."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # a connector sets it
    return callbacks


def shards_parameters(trainer: Trainer) -> bool:
    """Return whether the strategy splits parameters over devices."""
    return isinstance(trainer.strategy, (FSDPStrategy, DeepSpeedStrategy, ModelParallelStrategy))


def as_batch(sample: Any, module: LightningModule) -> Any:
    """Return an input sample as the Trainer hands it to a module: on its device, in its dtype where that is set."""
    # ``precision="bf16-true"`` and the like convert batches. A module that is to be restored is not converted yet.
    plugin = None if module._trainer is None else module._trainer.precision_plugin
    is_set = isinstance(plugin, HalfPrecision | DoublePrecision)
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), None) if is_set else None

    def placed(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.to(module.device, dtype if leaf.is_floating_point() else None)

    return pytree.tree_map(placed, sample)


def is_trial_run(trainer: Trainer) -> bool:
    """Return whether the Trainer only tries the code on a few batches (``fast_dev_run``)."""
    return bool(trainer.fast_dev_run)  # type: ignore[attr-defined]  # a connector sets it


def steps_of_run(trainer: Trainer) -> float:
    """Return how many optimizer steps the whole run has; infinite where Lightning cannot tell."""
    try:
        return trainer.estimated_stepping_batches
    except MisconfigurationException:
        return math.inf


def steps_of_epoch(trainer: Trainer) -> float:
    """Return how many optimizer steps an epoch has, one for each batch or accumulation; infinite if nobody knows."""
    steps = trainer.num_training_batches / trainer.accumulate_grad_batches
    return math.ceil(steps) if math.isfinite(steps) else steps


def logged_step(trainer: Trainer) -> int:
    """Return the step under which Lightning logs the batch at hand: those before it, one a batch."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def logs_at_this_step(trainer: Trainer) -> bool:
    """Return whether the Trainer itself logs the metrics of the step at hand (``log_every_n_steps``)."""
    every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # a connector sets it
    return every > 0 and (logged_step(trainer) + 1) % every == 0


def refuse_mixed_packages(trainer: Any, pl_module: Any) -> None:
    """Refuse a Trainer, module or callback of ``pytorch_lightning``."""
    # A Trainer takes callbacks of the other package without a word, but no isinstance sees them for what they are:
    # an averaging callback, or a strategy that shards, would not be noticed.
    foreign = [
        thing for thing, kind in ((trainer, Trainer), (pl_module, LightningModule)) if not isinstance(thing, kind)
    ]
    foreign += [callback for callback in trainer.callbacks if not isinstance(callback, Callback)]
    if foreign:
        names = ", ".join(dict.fromkeys(f"{type(thing).__module__}.{type(thing).__qualname__}" for thing in foreign))
        raise UnsupportedRunError(
            f"{names}: not of lightning.pytorch, as lit_gelu.callbacks are. pytorch_lightning is another package with "
            "the same names; import everything from lightning.pytorch."
        )
