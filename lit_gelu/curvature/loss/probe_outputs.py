"""A training step's loss, parted into outputs of the model and a loss of outputs, for the Gauss-Newton matrix."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from lit_gelu.curvature.loss.errors import LossCurvatureError

LOSS_FUNCTIONS = (functional.cross_entropy, functional.binary_cross_entropy_with_logits, functional.mse_loss)
"""The loss functions of torch, convex in their first argument, that are recognised in a training step."""

_REMEDY = (
    "Write the loss as one call of torch.nn.functional.cross_entropy, binary_cross_entropy_with_logits or mse_loss, or "
    "use operator='hessian'."
)


class LossCall(TorchFunctionMode):
    """While active, takes note of the calls of `LOSS_FUNCTIONS`; the last one parts outputs from loss.

    Example:
        >>> import torch
        >>> weight = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> with LossCall() as call:
        ...     loss = functional.mse_loss(3 * weight, torch.zeros(2))
        >>> call.outputs_of(loss)
        tensor([3., 6.], grad_fn=<MulBackward0>)
        >>> call.loss_of(torch.tensor([1.0, 1.0]))
        tensor(1.)
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Tensor]] = []
        self._loss_of: Callable[[Tensor], Tensor] | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function, and note a loss function's call."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in LOSS_FUNCTIONS:
            self._calls.append(((func, args, kwargs), result))
        return result

    def outputs_of(self, loss: Tensor) -> Tensor:
        """Return what the loss function was given.

        Args:
            loss: What the training step returned.

        Returns:
            The outputs of the model, with their graph.

        Raises:
            LossCurvatureError: If the loss is not what one call of a loss function returned.
        """
        found = [call for call, result in self._calls if result is loss]
        if len(found) != 1:
            names = ", ".join(call[0].__name__ for call, _ in self._calls) or "none"
            raise LossCurvatureError(
                f"The loss does not part into outputs and a loss of outputs: {names} of its loss functions was called, "
                f"and its value is not the loss itself. {_REMEDY}"
            )
        func, args, kwargs = found[0]
        outputs, rest = (args[0], args[1:]) if args else (kwargs["input"], ())
        options = {name: value for name, value in kwargs.items() if name != "input"}

        def loss_of(outputs: Tensor) -> Tensor:
            loss: Tensor = func(outputs, *rest, **options)
            return loss

        self._loss_of = loss_of
        if not isinstance(outputs, Tensor):
            raise LossCurvatureError(f"{func.__name__} was given {type(outputs).__name__} as outputs. {_REMEDY}")
        return outputs

    def loss_of(self, outputs: Tensor) -> Tensor:
        """Return the loss of other outputs, on the same targets.

        Args:
            outputs: Of the shape that `outputs_of` returned.

        Returns:
            The scalar loss.

        Raises:
            LossCurvatureError: If `outputs_of` was not called before.
        """
        if self._loss_of is None:
            raise LossCurvatureError("There is no loss of outputs before outputs were computed. Compute them first.")
        return self._loss_of(outputs)


class ParsedLoss:
    """One batch's loss, parted into a closure for the outputs and a loss of outputs.

    Args:
        closure: A probe's closure.

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(2, 2)
        >>> loss = ParsedLoss(lambda: functional.mse_loss(layer(torch.ones(3, 2)), torch.zeros(3, 2)))
        >>> loss.outputs().shape
        torch.Size([3, 2])
    """

    def __init__(self, closure: Callable[[], Tensor]) -> None:
        self._closure = closure
        self._call: LossCall | None = None

    def outputs(self) -> Tensor:
        """Return the model's outputs from the live parameters."""
        with LossCall() as call:
            loss = self._closure()
        outputs: Tensor = call.outputs_of(loss)
        self._call = call
        return outputs

    def loss(self, outputs: Tensor) -> Tensor:
        """Return the scalar loss of outputs.

        Args:
            outputs: As `outputs` returned.

        Returns:
            The loss.

        Raises:
            LossCurvatureError: If `outputs` was not called before.
        """
        return (self._call or LossCall()).loss_of(outputs)
