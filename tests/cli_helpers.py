"""What tests of `lit-gelu fit` and its like have in common."""

import os

import torch
from lightning.pytorch import Trainer

from lit_gelu.tasks import MNISTClassifier

# Options of a short run on the CPU that writes into the working folder.
FAST = [
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.logger=lightning.pytorch.loggers.CSVLogger",
    "--trainer.logger.save_dir=runs",
]


def forget_seeds() -> None:
    """Take away what seeding leaves in the environment, which the next test would read."""
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        os.environ.pop(name, None)


def save_untrained(path, activation="gelu", seed=0, **options):
    """Save MNISTClassifier as a Trainer in a script does: arguments, but no class; return the module."""
    torch.manual_seed(seed)
    model = MNISTClassifier(activation, **options)
    trainer = Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
    trainer.strategy.connect(model)
    trainer.save_checkpoint(path)
    return model
