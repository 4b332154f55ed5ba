"""Telling the other callbacks that the model's activations were replaced."""

from typing import Protocol, runtime_checkable

from lightning.pytorch import LightningModule, Trainer

from lit_gelu.callbacks.trainer_facts import callbacks_of
from lit_gelu.surgery import SwapReport


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
    """Call `ActivationSwapListener.on_activations_swapped` of every callback that has it.

    Args:
        trainer: The Trainer.
        pl_module: Its module, with the new activations.
        report: What was replaced; ``None`` if a swap was taken back.
    """
    for callback in callbacks_of(trainer):
        if isinstance(callback, ActivationSwapListener):
            callback.on_activations_swapped(trainer, pl_module, report)
