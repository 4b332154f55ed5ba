"""``--ckpt_path`` of a model of one's own in which activations were swapped, without its ``ActivationSwap``."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from lit_gelu.callbacks.swap.activation_swap import find_run, swaps_of
from lit_gelu.callbacks.swap.history import ACTIVATIONS_KEY, SWAPS_KEY, Checkpoint, Participant, install_hooks
from lit_gelu.callbacks.swap.run import registry_for
from lit_gelu.callbacks.trainer import as_batch
from lit_gelu.cli.input_sample import inputs_of_data
from lit_gelu.errors import CheckpointError, ModelInputError, message_of
from lit_gelu.surgery.activation_record import restore_activations
from lit_gelu.surgery.marks import without_marks
from lit_gelu.tasks.activation_task import ActivationTask

_WITH_SWAP = "give the ActivationSwap that it was trained with in --trainer.callbacks, or the configuration of that run"


class SwapRestorer:
    """Gives a module the activations that a checkpoint names, as `lit_gelu.callbacks.load_from_checkpoint` does."""

    def __init__(self, module: LightningModule) -> None:
        self.module = module

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Add nothing: a run that would go on with swaps is refused."""

    def read_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Put the activations in before the weights are loaded."""
        module = self.module
        if ACTIVATIONS_KEY not in checkpoint:
            return
        if module.trainer.state.fn == TrainerFn.FITTING and checkpoint.get(SWAPS_KEY):
            # The callback also keeps optimizers and annealing right, and writes the swaps into the next checkpoint.
            raise CheckpointError(
                f"Activations of {type(module).__name__} were swapped before this checkpoint was saved, and fit cannot "
                f"go on without the callback: {_WITH_SWAP}."
            )
        restore_activations(module, checkpoint[ACTIVATIONS_KEY], registry_for(module, []), _sample)
        without_marks(checkpoint.get("state_dict", {}))


@contextmanager
def swaps_restored(module: LightningModule) -> Iterator[None]:
    """Have a module take the checkpoint of a swapped one from its Trainer; say where weights do not fit."""
    if not isinstance(module, ActivationTask):  # tasks do so by themselves
        install_hooks(module, _restorer)
    load = module.load_state_dict

    def load_state_dict(state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return load(state_dict, *args, **kwargs)
        except RuntimeError as error:
            raise CheckpointError(
                f"The checkpoint is of another model than {type(module).__name__} with these arguments: "
                f"{' '.join(message_of(error).split())}. Give --model and its arguments as they were in training, and "
                "make swaps that were made by hand in its constructor."
            ) from error

    module.load_state_dict = load_state_dict  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.load_state_dict


def _restorer(module: LightningModule) -> Participant | None:
    """Return who reads a checkpoint: the run's swaps, which callbacks of the model's own may be, or else this file."""
    trainer: Trainer | None = module._trainer
    if trainer is None:
        return None
    return find_run(module) if swaps_of(trainer) else SwapRestorer(module)


def _sample(module: LightningModule) -> Any:
    """Return what finds calls of functions in a module: its own example, or the first rows of its data."""
    if module.example_input_array is not None:
        return as_batch(module.example_input_array, module)
    data = module.trainer.datamodule  # type: ignore[attr-defined]  # a connector sets it
    try:
        sample = None if data is None else inputs_of_data(data, module)
    except ModelInputError:
        sample = None
    if sample is None:
        raise CheckpointError(
            f"Calls of functions were swapped in the checkpoint's model. To find them, {type(module).__name__} needs "
            f"an example_input_array, or data whose batches begin with its input; or {_WITH_SWAP}."
        )
    return as_batch(sample, module)
