"""The module of a run as its best checkpoint holds it."""

import pickle
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lit_gelu.activations import ActivationRegistry
from lit_gelu.callbacks.checkpoint_file import CheckpointFileError, not_plain
from lit_gelu.callbacks.loading import load_from_checkpoint
from lit_gelu.callbacks.swap.checkpoint import ACTIVATIONS_KEY, Checkpoint
from lit_gelu.callbacks.swap.run import registry_for
from lit_gelu.callbacks.trainer_facts import callbacks_of
from lit_gelu.export.copying import evaluation_copy
from lit_gelu.surgery.activation_record import restore_activations
from lit_gelu.surgery.errors import CheckpointMismatchError
from lit_gelu.surgery.marks import without_marks


def best_checkpoint(trainer: Trainer) -> str:
    """Return the best checkpoint of a run.

    Args:
        trainer: The Trainer.

    Returns:
        The ``best_model_path`` of the first callback that has one; empty if there is none.
    """
    paths = (str(getattr(callback, "best_model_path", "") or "") for callback in callbacks_of(trainer))
    return next((path for path in paths if path), "")


def module_of_checkpoint(
    trainer: Trainer, pl_module: LightningModule, path: str, registry: ActivationRegistry | None = None
) -> LightningModule:
    """Return a copy of a run's module with the activations and weights of one of its checkpoints.

    A copy of the module at hand, and not a new one of its class, which needs the constructor's arguments: of a class
    that does not save them as hyperparameters, a new module may have other activations and the same weights, and
    nothing would show it. Only where the copy cannot take the checkpoint, such as one whose structure changed since, a
    new module is built with `lit_gelu.callbacks.load_from_checkpoint`.

    Args:
        trainer: The Trainer, after its fit.
        pl_module: Its module; it is read only.
        path: The checkpoint.
        registry: Which registry names the activations; ``None`` is the module's own or the default one.

    Returns:
        The copy, on the CPU, in evaluation mode, in float32.

    Raises:
        CheckpointFileError: If the checkpoint holds more than plain data.
        CheckpointMismatchError: If neither can take the checkpoint.
    """
    checkpoint = _read(trainer, path)
    try:
        return _copy_with(pl_module, checkpoint, registry)
    except (CheckpointMismatchError, RuntimeError) as error:
        if ACTIVATIONS_KEY not in checkpoint:
            raise CheckpointMismatchError(
                f"The best checkpoint does not fit the module as it is now ({error}), and does not name its "
                "activations. Was the module's structure changed during training? ActivationSwap records what it does."
            ) from error
        return _new_one(pl_module, path, registry, error)


def _read(trainer: Trainer, path: str) -> Checkpoint:
    """Read a checkpoint as the run's strategy does, plain data alone."""
    try:
        checkpoint: Checkpoint = trainer.strategy.checkpoint_io.load_checkpoint(
            path, map_location="cpu", weights_only=True
        )
    except pickle.UnpicklingError as error:
        raise CheckpointFileError(not_plain(repr(path), error)) from error
    return checkpoint


def _copy_with(
    pl_module: LightningModule, checkpoint: Checkpoint, registry: ActivationRegistry | None
) -> LightningModule:
    """Return a copy of the module with what a checkpoint holds."""
    twin: Any = evaluation_copy(pl_module)
    if ACTIVATIONS_KEY in checkpoint:
        sample = pl_module.example_input_array
        restore_activations(twin, checkpoint[ACTIVATIONS_KEY], registry_for(pl_module, [registry]), sample)
        without_marks(checkpoint.get("state_dict", {}))
    twin.on_load_checkpoint(checkpoint)
    twin.load_state_dict(checkpoint["state_dict"], strict=pl_module.strict_loading)
    copy: LightningModule = evaluation_copy(twin)  # type: ignore[assignment]  # activations that were put in are new
    return copy


def _new_one(
    pl_module: LightningModule, path: str, registry: ActivationRegistry | None, reason: Exception
) -> LightningModule:
    """Return a new module of the class, from its hyperparameters."""
    try:
        return load_from_checkpoint(type(pl_module), path, "cpu", registry=registry_for(pl_module, [registry])).eval()
    except TypeError as error:
        raise CheckpointMismatchError(
            f"The best checkpoint does not fit the module as it is now ({reason}), and {type(pl_module).__name__} "
            f"cannot be built anew ({error}). Call save_hyperparameters() in its constructor."
        ) from error
