"""What the tests of `ActivationSwap` have in common: its usual swaps, a run, and a witness of it."""

from callback_helpers import SmallNet, activations_of, loader, quiet_trainer
from lightning.pytorch import Callback

from lit_gelu.callbacks import ActivationSwap

RELU_TO_GELU = {"activation:relu": "gelu"}

STEPS_AN_EPOCH = 4


class Witness(Callback):
    """Notes which activations each batch is trained with, by epoch and optimizer steps before it."""

    def __init__(self):
        self.seen = []

    def on_before_zero_grad(self, trainer, pl_module, optimizer):
        self.seen.append((trainer.current_epoch, trainer.global_step, activations_of(pl_module)[0]))

    @property
    def names(self):
        return [name for _, _, name in self.seen]


def fit(folder, *callbacks, model=None, ckpt_path=None, **options):
    model = model or SmallNet()
    trainer = quiet_trainer(folder, *callbacks, **({"max_epochs": 3} | options))
    trainer.fit(model, loader(), ckpt_path=ckpt_path)
    return trainer, model


def chain():
    return ActivationSwap(RELU_TO_GELU, at_epoch=1), ActivationSwap({"activation:gelu": "silu"}, at_epoch=2)
