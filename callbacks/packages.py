"""Lightning comes in two packages whose classes have the same names and are not the same."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_gelu.callbacks.errors import MixedPackagesError


def refuse_mixed_packages(trainer: Any, pl_module: Any) -> None:
    """Refuse a Trainer, module or callback of ``pytorch_lightning``.

    A Trainer takes callbacks of the other package without a word, but no ``isinstance`` sees them for what they are:
    an averaging callback, or a strategy that shards, would not be noticed.

    Args:
        trainer: The Trainer.
        pl_module: Its module.

    Raises:
        MixedPackagesError: If one of them is not of ``lightning.pytorch``.
    """
    foreign = [
        thing for thing, kind in ((trainer, Trainer), (pl_module, LightningModule)) if not isinstance(thing, kind)
    ]
    foreign += [callback for callback in trainer.callbacks if not isinstance(callback, Callback)]
    if foreign:
        names = ", ".join(dict.fromkeys(f"{type(thing).__module__}.{type(thing).__qualname__}" for thing in foreign))
        raise MixedPackagesError(
            f"{names}: not of lightning.pytorch, as lit_gelu.callbacks are. pytorch_lightning is another package with "
            "the same names; import everything from lightning.pytorch."
        )
