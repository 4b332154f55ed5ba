"""`LossProbe`: the loss of a live LightningModule as a function of its parameters, without a trace in its training."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lit_gelu.arguments import check_one_of
from lit_gelu.curvature.loss.parameters import check_checkpoints, kinds_of, without_autocast
from lit_gelu.curvature.probe.batches import clone_batch, count_examples
from lit_gelu.curvature.probe.state import ModuleState, WriteGuard, seed_random_state
from lit_gelu.errors import ArgumentError, UnsupportedRunError
from lit_gelu.sandbox import as_written, evaluation_mode, isolated_generators, side_pass
from lit_gelu.surgery.sites import without_wrappers

Mode = Literal["train", "eval"]


class LossProbe:
    """The loss of a LightningModule on given batches, to be used as a context manager.

    Inside the context each of `closures` computes the mean loss of one batch from the live parameters, always the same
    function: every call finds random number generators, batch, buffers and attributes as they were. On leaving, also by
    an exception, everything is as it was found, bit by bit. docs/curvature.md says what is not undone.

    The loss is ``module.curvature_loss(batch)`` if the module defines that, else what its ``training_step`` returns,
    with ``self.log`` muted. It is not scaled and not divided by the number of accumulated batches. A module with manual
    optimisation must define ``curvature_loss``.

    Attention runs by its "math" kernel, and compiled modules as they were written: the fused ones have no second
    derivatives. Autocast is off, unless ``precision`` switches it on. Activation checkpointing works with
    ``use_reentrant=False``.

    Args:
        module: The LightningModule, unwrapped; of a compiled one the original is used. All ranks must enter, if its
            forward communicates (``SyncBatchNorm``).
        batches: The batches, on the module's device.
        mode: "train": every part of the module is in the mode it is found in; "eval": all are in evaluation.
        seed: From which the generators are set at every call; batch ``b`` gets ``seed + b``.
        batch_idx: The number that the ``training_step`` is told for the first batch.
        precision: Makes a context to compute the loss in, such as a Trainer's ``precision_plugin.forward_context``;
            ``None`` means autocast off.
        samples: How many examples each batch has, by which batches and ranks are weighted; ``None``: as can be told.

    Attributes:
        parameters: The live parameters by name; those that are frozen included.

    Raises:
        ArgumentError: If an argument is not accepted, or the module's loss cannot be computed on the side.

    Example:
        >>> from lightning.pytorch import LightningModule
        >>> class Model(LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = nn.Linear(2, 1, bias=False)
        ...     def training_step(self, batch):
        ...         return (self.layer(batch) ** 2).mean()
        >>> from lit_gelu.curvature.loss import hessian_operator
        >>> with LossProbe(Model(), [torch.tensor([[1.0, 0.0], [0.0, 3.0]])]) as probe:
        ...     hessian = hessian_operator(probe.closures, probe.parameters, samples=probe.samples)
        ...     hessian(torch.tensor([1.0, 1.0]))
        tensor([1., 9.])
    """

    def __init__(
        self,
        module: nn.Module,
        batches: Sequence[Any],
        *,
        mode: Mode = "train",
        seed: int = 0,
        batch_idx: int = 0,
        precision: Callable[[], AbstractContextManager[Any]] | None = None,
        samples: Sequence[int] | None = None,
    ) -> None:
        self.module: nn.Module = without_wrappers(module)
        self._loss_of = loss_function(self.module)
        check_one_of(get_args(Mode), mode=mode)
        if not isinstance(batches, Sequence) or not batches:
            raise ArgumentError(f"{batches=} is not accepted. Give a list with at least one batch.")
        self.mode = mode
        self.parameters: dict[str, Tensor] = dict(self.module.named_parameters())
        self.samples = [] if samples is None else list(samples)
        for batch in batches if samples is None else ():
            if not (examples := count_examples(batch)):
                raise ArgumentError(
                    f"A batch of type {type(batch).__name__} has {examples} examples, as far as can be told. Give "
                    "samples=, the number of examples of each batch: batches and ranks are weighted by it."
                )
            self.samples.append(examples)
        self._batches = list(batches)
        self._seed, self._first_batch_idx = seed, batch_idx
        self._precision = precision
        self._stack: ExitStack | None = None
        self._state: ModuleState | None = None
        self._guard: WriteGuard | None = None
        self._differentiable: set[int] = set()
        self._logging: list[nn.Module] = []

    @property
    def closures(self) -> list[Callable[[], Tensor]]:
        """One function a batch, which returns its mean loss; usable inside the context."""
        return [partial(self._loss, number) for number in range(len(self._batches))]

    def __enter__(self) -> Self:
        with ExitStack() as stack:  # so that a failure on the way in leaves no trace either
            stack.enter_context(side_pass())
            state = ModuleState(self.module)
            stack.callback(state.restore)
            guard = WriteGuard(self.module, self.parameters, state.parameters, state.tensors)
            stack.callback(guard.restore)
            stack.enter_context(isolated_generators(state.devices))
            # Not for a pass forward only: checkpointed activations are computed a second time in the pass back.
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            stack.enter_context(as_written())  # what is compiled has no double backward
            if any(isinstance(part, nn.RNNBase) for part in state.modules):
                stack.enter_context(torch.backends.cudnn.flags(enabled=False))  # nor have recurrent nets of cuDNN
            if self.mode == "eval":
                stack.enter_context(evaluation_mode(self.module))
            self._state, self._guard, self._logging = state, guard, logging_modules(state.modules)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        stack, self._stack, self._state, self._guard = self._stack, None, None, None
        return None if stack is None else stack.__exit__(kind, error, traceback)

    def _loss(self, number: int) -> Tensor:
        if self._state is None or self._guard is None:
            raise ArgumentError("A closure of a LossProbe was called outside of its context. Use it inside `with`.")
        self._state.rewind()
        seed_random_state(self._seed + number, self._state.devices)
        precision = self._precision or partial(without_autocast, *self._state.devices)
        # Training steps change batches in place (``x /= 255``). A copy of an inference tensor counts versions.
        with torch.inference_mode(False), torch.enable_grad():
            batch = clone_batch(self._batches[number])
        with muted(self._logging), precision(), self._guard.call():
            loss = self._loss_of(batch, self._first_batch_idx + number)
        if loss.requires_grad and number not in self._differentiable:
            check_checkpoints(kinds_of(loss))
            self._differentiable.add(number)
        return loss


def loss_function(module: nn.Module) -> Callable[[Any, int], Tensor]:
    """Return what computes the loss of a batch and its number: ``curvature_loss``, else ``training_step``."""
    name = type(module).__name__
    hook = getattr(module, "curvature_loss", None)
    if callable(hook):
        return lambda batch, _: _loss_from(hook(batch), f"{name}.curvature_loss")
    remedy = "Define curvature_loss(self, batch) on it: it returns the scalar loss and does nothing else."
    step = getattr(module, "training_step", None)
    if not callable(step):
        raise ArgumentError(f"{name} has neither curvature_loss nor training_step. {remedy}")
    if not getattr(module, "automatic_optimization", True):
        raise ArgumentError(
            f"{name} optimises by hand (automatic_optimization=False): its training_step would take optimizer steps in "
            f"the probe, and no one tensor in it is the loss. {remedy}"
        )
    parameters = inspect.signature(step).parameters
    if "dataloader_iter" in parameters:
        raise ArgumentError(f"{name}.training_step takes dataloader_iter: it would eat training batches. {remedy}")
    kinds = [parameter.kind for parameter in parameters.values()]  # by the rule that Lightning has
    positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    count = math.inf if inspect.Parameter.VAR_POSITIONAL in kinds else sum(kind in positional for kind in kinds)
    if "batch_idx" in parameters or count > 1:
        return lambda batch, batch_idx: _loss_from(step(batch, batch_idx), f"{name}.training_step")
    return lambda batch, _: _loss_from(step(batch), f"{name}.training_step")


def logging_modules(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the LightningModules among some modules: those that have ``log``."""
    return [part for part in modules if callable(getattr(type(part), "log_dict", None))]


@contextmanager
def muted(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Let ``self.log`` and ``self.log_dict`` do nothing."""
    silence = dict.fromkeys(("log", "log_dict"), lambda *_, **__: None)
    before = [(part.__dict__, {name: part.__dict__[name] for name in silence.keys() & vars(part)}) for part in modules]
    try:
        for attributes, _ in before:
            attributes.update(silence)
        yield
    finally:
        for attributes, methods in before:
            for name in silence:
                attributes.pop(name, None)
            attributes.update(methods)


def _loss_from(output: Any, source: str) -> Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else output
    if not isinstance(loss, Tensor):
        raise (UnsupportedRunError if output is None else ArgumentError)(
            f"{source} returned {type(output).__name__} without a loss for the probe's batch. Accepted is a tensor, or "
            "a dict with the key 'loss'; for a batch that is skipped, choose another as probe."
        )
    return loss
