"""`LossProbe`: the loss of a live LightningModule as a function of its parameters, without a trace in its training."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lit_gelu.curvature.loss.evaluation import REENTRANT, check_checkpoints, kinds_of
from lit_gelu.curvature.probe.examples import check_part, clone_batch, copy_containers, count_examples, part_of
from lit_gelu.curvature.probe.state import Contents, ModuleState, seed_random_state
from lit_gelu.curvature.probe.training_loss import logging_modules, loss_function, muted
from lit_gelu.curvature.probe.writes import WriteGuard
from lit_gelu.errors import ArgumentError
from lit_gelu.sandbox import as_written, evaluation_mode, isolated_generators, side_pass
from lit_gelu.surgery.sites import without_wrappers


class ProbeInput:
    """Hands a batch out as often as one likes, always with the same values, and never the batch itself."""

    # Training steps change batches in place (``x /= 255``). What is handed out is a copy; a new one is made only after
    # the last was changed, which the version counters of its tensors tell.

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._copy: Any = None
        self._contents: Contents | None = None
        self._marks: list[tuple[int, bool]] = []

    def fresh(self) -> Any:
        """Return a batch with the values given, of tensors and containers that the one given does not share."""
        if self._contents is not None:
            self._contents.restore()
        if self._contents is None or self._marks != _marks(self._contents):
            with torch.inference_mode(False), torch.enable_grad():  # a copy of an inference tensor counts versions
                self._copy = clone_batch(self._batch)
            self._contents = Contents()
            self._contents.keep(self._copy)
            self._marks = _marks(self._contents)
        return copy_containers(self._copy)

    def release(self) -> None:
        """Forget the copy."""
        self._copy = self._contents = None


def _marks(contents: Contents) -> list[tuple[int, bool]]:
    """Return of each tensor what changes when it is written to, or put under differentiation."""
    return [(tensor._version, tensor.requires_grad) for tensor in contents.tensors]


Mode = Literal["train", "eval"]


class LossProbe:
    """The loss of a LightningModule on given batches, to be used as a context manager.

    Inside the context each of `closures` computes the mean loss of one batch from the live parameters, as often as one
    likes and always the same function: every call finds the random number generators (Python, numpy, torch on the CPU
    and on the model's CUDA devices) at the same place, so that dropout draws the same masks, and the batch, the buffers
    and attributes (running means, counters, metrics) as they were. On leaving, also by an exception, everything is as
    it was found, bit by bit: train/eval flags, parameters, buffers, generators, ``.grad``, attributes, metrics. The
    batches given are not touched.

    Attributes are followed into containers of up to 1,000 elements and into the ``__dict__`` of plain objects, such as
    a meter; not into objects that these hold, ``__slots__`` or iterators. Of a list or dictionary of more than 10,000,
    only what is added at the end is taken away again.

    Frozen parameters may be written to by the ``training_step``, which is how teachers are averaged: they are put back.
    One that writes to parameters that are trained is refused; see `WriteGuard`.

    The loss is ``module.curvature_loss(batch)`` if the module defines that, else what its ``training_step`` returns,
    with ``self.log`` muted. It is not scaled and not divided by the number of accumulated batches. What a
    ``training_step`` does outside of the module (it writes files, or to globals and attributes of classes) it does in a
    probe, too: define ``curvature_loss`` then. A module with manual optimisation must define it.

    Attention runs by its "math" kernel, and compiled modules as they were written: the fused ones have no second
    derivatives. Autocast is off, unless ``precision`` switches it on. Activation checkpointing works with
    ``use_reentrant=False``.

    Args:
        module: The LightningModule, unwrapped; of a compiled one the original is used. All ranks must enter, if its
            forward communicates (``SyncBatchNorm``).
        batches: The batches, on the module's device.
        mode: "train": every part of the module is in the mode it is found in; "eval": all are in evaluation.
        fraction: Which share of each batch to use, its first examples; ``None`` means all.
        samples: How many examples of each batch to use instead.
        seed: From which the generators are set at every call; batch ``b`` gets ``seed + b``.
        batch_idx: The number that the ``training_step`` is told for the first batch.
        precision: Makes a context to compute the loss in, such as a Trainer's ``precision_plugin.forward_context``;
            ``None`` means autocast off.
        count: Says how many examples a batch has, by which batches and ranks are weighted; ``None`` means
            `count_examples`.

    Attributes:
        module: The module.
        samples: How many examples each batch has.
        parameters: The live parameters by name; those that are frozen included.
        calls: How many times a closure was called.

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
        fraction: float | None = None,
        samples: int | None = None,
        seed: int = 0,
        batch_idx: int = 0,
        precision: Callable[[], AbstractContextManager[Any]] | None = None,
        count: Callable[[Any], int] | None = None,
    ) -> None:
        self.module: nn.Module = without_wrappers(module)
        self._loss_of = loss_function(self.module)
        check_part(fraction, samples)
        _check(mode, batches)
        self.mode = mode
        self.calls = 0
        self.parameters: dict[str, Tensor] = dict(self.module.named_parameters())
        parts = [part_of(batch, fraction, samples) for batch in batches]
        self.samples = [_examples(part, count) for part in parts]
        self._inputs = [ProbeInput(part) for part in parts]
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
        return [partial(self._loss, number) for number in range(len(self._inputs))]

    def __enter__(self) -> Self:
        with ExitStack() as stack:  # so that a failure on the way in leaves no trace either
            stack.enter_context(_rephrased_errors())
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
        try:
            for each in self._inputs:
                each.release()
        finally:
            suppressed = None if stack is None else stack.__exit__(kind, error, traceback)
        return suppressed

    def _loss(self, number: int) -> Tensor:
        """Return the mean loss of one batch."""
        if self._state is None or self._guard is None:
            raise ArgumentError("A closure of a LossProbe was called outside of its context. Use it inside `with`.")
        self.calls += 1
        self._state.rewind()
        seed_random_state(self._seed + number, self._state.devices)
        precision = self._precision or partial(_without_autocast, self._state.devices)
        with muted(self._logging), precision(), self._guard.call():
            loss = self._loss_of(self._inputs[number].fresh(), self._first_batch_idx + number)
        if loss.requires_grad and number not in self._differentiable:
            check_checkpoints(kinds_of(loss))
            self._differentiable.add(number)
        return loss


def _without_autocast(devices: set[torch.device]) -> AbstractContextManager[Any]:
    """Return a context that switches autocast off for the model's devices."""
    stack = ExitStack()
    for kind in {device.type for device in devices if device.type != "meta"}:
        stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


@contextmanager
def _rephrased_errors() -> Iterator[None]:
    """Say of an error of torch's what to do about it."""
    try:
        yield
    except RuntimeError as error:
        if "compatible with .grad()" in str(error):  # the end of the sentence in every release of torch
            raise ArgumentError(REENTRANT) from error
        raise


def _check(mode: str, batches: Sequence[Any]) -> None:
    """Refuse an unknown mode, and no batch."""
    if mode not in {"train", "eval"}:
        raise ArgumentError(f"{mode=} is not accepted. Give 'train' or 'eval'.")
    if not isinstance(batches, Sequence) or not batches:
        raise ArgumentError(f"{batches=} is not accepted. Give a list with at least one batch.")


def _examples(batch: Any, count: Callable[[Any], int] | None) -> int:
    """Return the number of examples of a batch, which must be known."""
    examples = count_examples(batch) if count is None else count(batch)
    if examples is None or examples < 1:
        raise ArgumentError(
            f"A batch of type {type(batch).__name__} has {examples} examples, as far as can be told. Give count=, a "
            "function from a batch to its number of examples: batches and ranks are weighted by it."
        )
    return examples
