"""The loss that a LightningModule trains on, and its parts: outputs of the model and a loss of outputs."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from lit_gelu.errors import ArgumentError, UnsupportedRunError

HOOK = "curvature_loss"
"""A method of the module, from a batch to its scalar loss; it takes the place of ``training_step`` in a probe."""


LossFunction = Callable[[Any, int], Tensor]
"""From a batch and its number to the scalar loss, unscaled and with its graph."""


def loss_function(module: nn.Module) -> LossFunction:
    """Return what computes a batch's loss: ``curvature_loss``, else ``training_step``; its signature is read once."""
    name = type(module).__name__
    hook = getattr(module, HOOK, None)
    if callable(hook):
        return lambda batch, _: _loss_from(hook(batch), f"{name}.{HOOK}")
    remedy = f"Define {HOOK}(self, batch) on it: it returns the scalar loss and does nothing else."
    step = getattr(module, "training_step", None)
    if not callable(step):
        raise ArgumentError(f"{name} has neither {HOOK} nor training_step. {remedy}")
    if not getattr(module, "automatic_optimization", True):
        raise ArgumentError(
            f"{name} optimises by hand (automatic_optimization=False): its training_step would take optimizer steps in "
            f"the probe, and no one tensor in it is the loss. {remedy}"
        )
    parameters = inspect.signature(step).parameters
    if "dataloader_iter" in parameters:
        raise ArgumentError(f"{name}.training_step takes dataloader_iter: it would eat training batches. {remedy}")
    if _takes_batch_idx(parameters):
        return lambda batch, batch_idx: _loss_from(step(batch, batch_idx), f"{name}.training_step")
    return lambda batch, _: _loss_from(step(batch), f"{name}.training_step")


def loss_of(module: nn.Module, batch: Any, batch_idx: int) -> Tensor:
    """Return the loss of one batch, unscaled and with its graph."""
    return loss_function(module)(batch, batch_idx)


def logging_modules(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the LightningModules among some modules: those that have ``log``."""
    return [part for part in modules if callable(getattr(type(part), "log_dict", None))]


@contextmanager
def muted(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Let ``self.log`` and ``self.log_dict`` do nothing."""
    before = [
        (part, name, part.__dict__.get(name)) for part in logging_modules(modules) for name in ("log", "log_dict")
    ]
    try:
        for part, name, _ in before:
            part.__dict__[name] = _say_nothing
        yield
    finally:
        for part, name, previous in before:
            if previous is None:
                part.__dict__.pop(name, None)
            else:
                part.__dict__[name] = previous


def _say_nothing(*_arguments: Any, **_options: Any) -> None:
    """Take the place of ``log``."""


def _takes_batch_idx(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Return whether a ``training_step`` takes a second argument, by the rule that Lightning has."""
    kinds = [parameter.kind for parameter in parameters.values()]
    positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    return (
        "batch_idx" in parameters
        or sum(kind in positional for kind in kinds) > 1
        or inspect.Parameter.VAR_POSITIONAL in kinds
    )


def _loss_from(output: Any, source: str) -> Tensor:
    """Return the loss in what a training step returned."""
    loss = output.get("loss") if isinstance(output, Mapping) else output
    if not isinstance(loss, Tensor):
        raise (UnsupportedRunError if output is None else ArgumentError)(
            f"{source} returned {type(output).__name__} without a loss for the probe's batch. Accepted is a tensor, or "
            "a dict with the key 'loss'; for a batch that is skipped, choose another as probe."
        )
    return loss


LOSS_FUNCTIONS = (functional.cross_entropy, functional.binary_cross_entropy_with_logits, functional.mse_loss)
"""The loss functions of torch, convex in their first argument, that are recognised in a training step."""

_REMEDY = (
    "Write the loss as one call of torch.nn.functional.cross_entropy, binary_cross_entropy_with_logits or mse_loss, or "
    "use operator='hessian'."
)


class ParsedLoss:
    """One batch's loss, a probe's closure, parted into a closure for the outputs and a loss of outputs."""

    def __init__(self, closure: Callable[[], Tensor]) -> None:
        self._closure = closure
        self._loss_of: Callable[[Tensor], Tensor] | None = None

    def outputs(self) -> Tensor:
        """Return the model's outputs from the live parameters: what the last call of a loss function was given."""
        self._loss_of = None
        with _LossCalls() as calls:
            loss = self._closure()
        matches = [call for call, result in calls.records if result is loss]
        if len(matches) != 1:
            names = ", ".join(call[0].__name__ for call, _ in calls.records) or "none"
            raise ArgumentError(
                f"The loss does not part into outputs and a loss of outputs: {names} of its loss functions was called, "
                f"and its value is not the loss itself. {_REMEDY}"
            )
        func, args, kwargs = matches[0]
        outputs, rest = (args[0], args[1:]) if args else (kwargs["input"], ())
        if not isinstance(outputs, Tensor):
            raise ArgumentError(f"{func.__name__} was given {type(outputs).__name__} as outputs. {_REMEDY}")
        options = {name: value for name, value in kwargs.items() if name != "input"}
        if any(isinstance(value, Tensor) and value.requires_grad for value in (*rest, *options.values())):
            raise ArgumentError(
                f"{func.__name__} was given targets or weights that depend on parameters, and the Gauss-Newton matrix "
                "is that of the outputs alone. Detach them if they are meant as constants, or use operator='hessian'."
            )
        self._loss_of = lambda outputs: func(outputs, *rest, **options)
        return outputs

    def loss(self, outputs: Tensor) -> Tensor:
        """Return the scalar loss of outputs, on the same targets."""
        if self._loss_of is None:
            raise ArgumentError("There is no loss of outputs before outputs were computed. Compute them first.")
        return self._loss_of(outputs)


class _LossCalls(TorchFunctionMode):
    """While active, takes note of the calls of `LOSS_FUNCTIONS`: function and arguments, and what came back."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[Any, Tensor]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in LOSS_FUNCTIONS:
            self.records.append(((func, args, kwargs), result))
        return result
