"""A mean squared error of which torch has every derivative.

The pass back of torch's `mse_loss` has no forward derivative where the target does not depend on the parameters: torch
ends with "ZeroTensors are immutable".
"""

from typing import Any

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class ComposedSquaredError(TorchFunctionMode):
    """While active, calls of torch's `mse_loss` without weights compute ``(input - target)^2`` from these functions.

    Source: `torch.nn.functional.mse_loss`; the value is the same up to rounding.

    Example:
        >>> import torch
        >>> with ComposedSquaredError():
        ...     functional.mse_loss(torch.tensor([1.0, 4.0]), torch.zeros(2), reduction="sum").item()
        17.0
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace one function and pass the others on."""
        kwargs = kwargs or {}
        if func is functional.mse_loss:
            return _composed(*args, **kwargs)
        return func(*args, **kwargs)


def _composed(
    input: Tensor,  # noqa: A002  # torch's name: it may come as keyword
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """Return the squared error, reduced as torch does."""
    if weight is not None:  # torch composes that itself
        return functional.mse_loss(input, target, size_average, reduce, reduction, weight)
    if size_average is not None or reduce is not None:  # torch's older names
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    squares = (input - target).square()
    if reduction not in {"mean", "sum", "none"}:
        return functional.mse_loss(input, target, reduction=reduction)  # which says what is accepted
    return squares if reduction == "none" else squares.sum() if reduction == "sum" else squares.mean()
