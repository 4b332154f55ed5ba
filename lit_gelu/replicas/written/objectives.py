"""What a fully connected net descends, written out for one member: gradients a step, and the losses of all steps."""

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from lit_gelu.replicas.errors import unknown_labels

KeptSteps = Callable[[str, int], Tensor]  # the tensor of a name, [steps, batch, width]: one for all members
_MEAN, _SUM, _NO_IGNORED = 1, 2, -100  # torch's numbers for reductions and ignore_index
_aten = torch.ops.aten


class Loss(Protocol):
    """Measures outputs, for several steps one after the other."""

    def begin(self, labels: Tensor) -> None:
        """Take the labels of the steps to come, ``[steps, batch]``."""
        ...

    def log(self, step: int, outputs: Tensor, inputs: Tensor) -> None:
        """Keep what the loss of these outputs follows from."""
        ...

    def backward(self, step: int, outputs: Tensor, inputs: Tensor, is_logged: bool) -> Tensor:
        """Return the gradient of outputs, and do what `log` does if they are the ones to be logged."""
        ...

    def logged(self) -> Tensor:
        """Return the losses that were logged, ``[steps]``."""
        ...


class CrossEntropy:
    """``F.cross_entropy`` and its gradient.

    What depends on labels alone, and what is logged alone, is computed of all steps at once.

    Args:
        kept: Where log-probabilities and gradients go, for so many steps.
    """

    def __init__(self, kept: KeptSteps) -> None:
        self.kept = kept
        self.unlogged, self.gradient = kept("log-probabilities", 1)[0], kept("gradient of outputs", 1)[0]
        self._begin_for(1)

    def begin(self, labels: Tensor) -> None:
        """See `Loss`."""
        self.labels = labels.flatten()
        if len(labels) > len(self.logs):
            self._begin_for(2 ** math.ceil(math.log2(len(labels))))
        of_logs = self._joined(self.all_of_logs).zero_()
        try:
            of_logs.scatter_(1, self.labels.unsqueeze(1), -1 / labels.shape[1])  # none weighs less or is ignored
        except RuntimeError as error:
            raise unknown_labels(labels, of_logs.shape[1]) from error

    def log(self, step: int, outputs: Tensor, inputs: Tensor) -> None:  # noqa: ARG002
        """See `Loss`."""
        torch._log_softmax(outputs, 1, False, out=self.logs[step])

    def backward(self, step: int, outputs: Tensor, inputs: Tensor, is_logged: bool) -> Tensor:  # noqa: ARG002
        """See `Loss`."""
        logs = self.logs[step] if is_logged else self.unlogged
        torch._log_softmax(outputs, 1, False, out=logs)
        return torch._log_softmax_backward_data(self.of_logs[step], logs, 1, logs.dtype, out=self.gradient)

    def logged(self) -> Tensor:
        """See `Loss`."""
        losses = nn.functional.nll_loss(self._joined(self.all_logs), self.labels, reduction="none")
        return losses.view(-1, len(self.gradient)).mean(1)

    def _joined(self, steps: Tensor) -> Tensor:
        """Return what there is of all samples of all steps to come, ``[samples, classes]``."""
        return steps.flatten(0, 1)[: len(self.labels)]

    def _begin_for(self, steps: int) -> None:
        self.all_logs = self.kept("logged log-probabilities", steps)
        self.all_of_logs = self.kept("gradients of log-probabilities", steps)
        self.logs, self.of_logs = self.all_logs.unbind(), self.all_of_logs.unbind()


class SquaredError:
    """``F.mse_loss`` of reconstructed inputs, and its gradient.

    Args:
        kept: Where the gradient goes.
    """

    def __init__(self, kept: KeptSteps) -> None:
        self.gradient = kept("gradient of outputs", 1)[0]
        self.one = self.gradient.new_ones(())

    def begin(self, labels: Tensor) -> None:
        """See `Loss`."""
        self.losses = self.gradient.new_empty(len(labels))

    def log(self, step: int, outputs: Tensor, inputs: Tensor) -> None:
        """See `Loss`."""
        self.losses[step] = nn.functional.mse_loss(outputs, inputs)

    def backward(self, step: int, outputs: Tensor, inputs: Tensor, is_logged: bool) -> Tensor:
        """See `Loss`."""
        if is_logged:
            self.log(step, outputs, inputs)
        return _aten.mse_loss_backward.grad_input(  # type: ignore[no-any-return]
            self.one, outputs, inputs, _MEAN, grad_input=self.gradient
        )

    def logged(self) -> Tensor:
        """See `Loss`."""
        return self.losses
