"""Functions of torch in whose place others are computed, since torch lacks some of their derivatives."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class ComposedFunctions(TorchFunctionMode):
    """While active, calls of some functions of torch go to others of the same arguments."""

    def __init__(self, functions: Mapping[Callable[..., Any], Callable[..., Any]]) -> None:
        super().__init__()
        self._functions = functions

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace some functions and pass the others on."""
        return self._functions.get(func, func)(*args, **(kwargs or {}))


def _squared_error(
    input: Tensor,  # noqa: A002  # torch's name: it may come as keyword
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """Return the squared error ``(input - target)^2``, reduced as torch does; the same up to rounding."""
    if weight is not None:  # torch composes that itself
        return functional.mse_loss(input, target, size_average, reduce, reduction, weight)
    if size_average is not None or reduce is not None:  # torch's older names
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    squares = (input - target).square()
    if reduction not in {"mean", "sum", "none"}:
        return functional.mse_loss(input, target, reduction=reduction)  # which says what is accepted
    return squares if reduction == "none" else squares.sum() if reduction == "sum" else squares.mean()


# The pass back of torch's mse_loss has no forward derivative where the target does not depend on the parameters: torch
# ends with "ZeroTensors are immutable".
SQUARED_ERROR: dict[Callable[..., Any], Callable[..., Any]] = {functional.mse_loss: _squared_error}
