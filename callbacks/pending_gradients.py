"""Between the batches of one accumulated step: what a checkpoint needs to go on from there."""

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch import Tensor

from lit_gelu.callbacks.errors import UnsupportedRunError
from lit_gelu.callbacks.trainer_facts import callbacks_of
from lit_gelu.errors import shown


def is_between_batches_of_a_step(trainer: Trainer) -> bool:
    """Return whether a batch is over whose gradients no optimizer step has used.

    Args:
        trainer: The Trainer, while it fits with automatic optimization, or when it goes on from a checkpoint.

    Returns:
        Whether there is one.
    """
    loop = trainer.fit_loop.epoch_loop
    batches = loop.batch_progress.current
    processed: int = batches.processed  # type: ignore[attr-defined]  # Lightning's type is that of a lesser tracker
    if batches.ready == processed:
        return loop._should_accumulate()
    return processed % trainer.accumulate_grad_batches != 0  # the next batch has begun


def pending_gradients(trainer: Trainer) -> dict[str, Tensor]:
    """Return the gradients that the next optimizer step will use, of this rank.

    Nothing says what becomes of gradients under manual optimization: there all of them are returned.

    Args:
        trainer: The Trainer, while it fits.

    Returns:
        Gradients by parameter name, not copied; none between two steps.
    """
    module = trainer.lightning_module
    if module.automatic_optimization and not is_between_batches_of_a_step(trainer):
        return {}
    return {name: p.grad.detach() for name, p in module.named_parameters() if p.grad is not None}


def set_gradients(module: LightningModule, gradients: dict[str, Tensor]) -> None:
    """Give parameters the gradients that `pending_gradients` returned.

    Args:
        module: The module.
        gradients: Gradients by parameter name, on any device.

    Raises:
        UnsupportedRunError: If the module has other parameters.
    """
    parameters = dict(module.named_parameters())
    for name, gradient in gradients.items():
        parameter = parameters.get(name)
        if not isinstance(gradient, Tensor):
            raise UnsupportedRunError(
                f"The checkpoint is damaged: its gradient of {shown(name)} is {shown(gradient)}. Resume from another."
            )
        if parameter is None or parameter.shape != gradient.shape:
            found = "has no such parameter" if parameter is None else f"has it as {list(parameter.shape)}"
            raise UnsupportedRunError(
                f"The checkpoint is from between the batches of one step and holds a gradient of {name!r} "
                f"({list(gradient.shape)}); this model {found}. Resume with the model that was saved."
            )
        parameter.grad = gradient.to(parameter.device)


def check_accumulation_schedule(trainer: Trainer, callback: Callback) -> None:
    """Refuse a `GradientAccumulationScheduler` that starts after a callback which calls `resume_accumulation`.

    It refuses a Trainer that accumulates already when it starts.

    Args:
        trainer: The Trainer.
        callback: The callback.

    Raises:
        UnsupportedRunError: If there is one.
    """
    callbacks = callbacks_of(trainer)
    if any(isinstance(other, GradientAccumulationScheduler) for other in callbacks[callbacks.index(callback) :]):
        raise UnsupportedRunError(
            f"GradientAccumulationScheduler comes after {type(callback).__name__} in the Trainer's callbacks. Put it "
            f"before: {type(callback).__name__} sets the accumulation of the epoch in which a run is resumed."
        )


def resume_accumulation(trainer: Trainer) -> None:
    """Accumulate as a `GradientAccumulationScheduler` says for the epoch at hand.

    It says so as an epoch starts, and Lightning starts none where it resumes within one.

    Args:
        trainer: The Trainer, as its training starts.
    """
    for callback in callbacks_of(trainer):
        if isinstance(callback, GradientAccumulationScheduler):
            trainer.accumulate_grad_batches = callback.get_accumulate_grad_batches(trainer.current_epoch)
