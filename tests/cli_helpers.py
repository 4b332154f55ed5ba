"""What tests of `lit-gelu fit` and its like have in common."""

import os

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
