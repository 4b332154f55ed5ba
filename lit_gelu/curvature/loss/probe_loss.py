"""The loss that a LightningModule trains on, without what a training step does besides."""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from lit_gelu.curvature.loss.errors import LossCurvatureError

HOOK = "curvature_loss"
"""A method of the module, from a batch to its scalar loss; it takes the place of ``training_step`` in a probe."""


def check_module(module: nn.Module) -> None:
    """Refuse a module whose loss cannot be computed on the side of its training.

    Args:
        module: The LightningModule.

    Raises:
        LossCurvatureError: If it has no ``curvature_loss``, and its ``training_step`` is not a loss of a batch: it
            optimises by hand, takes the iterator of a loader, or is missing.
    """
    if callable(getattr(module, HOOK, None)):
        return
    name = type(module).__name__
    remedy = f"Define {HOOK}(self, batch) on it: it returns the scalar loss and does nothing else."
    step = getattr(module, "training_step", None)
    if not callable(step):
        raise LossCurvatureError(f"{name} has neither {HOOK} nor training_step. {remedy}")
    if not getattr(module, "automatic_optimization", True):
        raise LossCurvatureError(
            f"{name} optimises by hand (automatic_optimization=False): its training_step would take optimizer steps in "
            f"the probe, and no one tensor in it is the loss. {remedy}"
        )
    if "dataloader_iter" in inspect.signature(step).parameters:
        raise LossCurvatureError(f"{name}.training_step takes dataloader_iter: it would eat training batches. {remedy}")


def loss_of(module: nn.Module, batch: Any, batch_idx: int) -> Tensor:
    """Return the loss of one batch, unscaled and with its graph.

    It is ``module.curvature_loss(batch)`` if there is such a method, otherwise what ``module.training_step`` returns.

    Args:
        module: The LightningModule; see `check_module`.
        batch: What ``training_step`` takes.
        batch_idx: The batch's number, for a ``training_step`` that takes one.

    Returns:
        The loss.

    Raises:
        LossCurvatureError: If no loss comes back.
    """
    hook = getattr(module, HOOK, None)
    if callable(hook):
        return _loss_from(hook(batch), f"{type(module).__name__}.{HOOK}")
    step: Any = module.training_step
    output = step(batch, batch_idx) if _takes_batch_idx(step) else step(batch)
    return _loss_from(output, f"{type(module).__name__}.training_step")


@contextmanager
def muted(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Let ``self.log`` and ``self.log_dict`` do nothing.

    Args:
        modules: Modules, LightningModules among them.

    Yields:
        Nothing.
    """
    loggers = [part for part in modules if callable(getattr(type(part), "log_dict", None))]
    before = [(part, name, part.__dict__.get(name)) for part in loggers for name in ("log", "log_dict")]
    try:
        for part, name, _ in before:
            part.__dict__[name] = _say_nothing
        yield
    finally:
        for part, name, own in before:
            if own is None:
                part.__dict__.pop(name, None)
            else:
                part.__dict__[name] = own


def _say_nothing(*_arguments: Any, **_options: Any) -> None:
    """Take the place of ``log``."""


def _takes_batch_idx(step: Any) -> bool:
    """Return whether a ``training_step`` takes a second argument, by the rule that Lightning has."""
    parameters = inspect.signature(step).parameters.values()
    positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    return (
        "batch_idx" in {parameter.name for parameter in parameters}
        or sum(parameter.kind in positional for parameter in parameters) > 1
        or any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
    )


def _loss_from(output: Any, source: str) -> Tensor:
    """Return the loss in what a training step returned."""
    loss = output.get("loss") if isinstance(output, Mapping) else output
    if not isinstance(loss, Tensor):
        raise LossCurvatureError(
            f"{source} returned {type(output).__name__} without a loss for the probe's batch. Accepted is a tensor, or "
            "a dict with the key 'loss'; for a batch that is skipped, choose another as probe."
        )
    return loss
