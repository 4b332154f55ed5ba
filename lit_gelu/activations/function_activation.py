"""A plain function as a module."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class FunctionActivation(nn.Module):
    """``f(x, **kwargs)`` of a plain function, so that it can stand in a model, be found and be swapped.

    Args:
        function: Takes a tensor and keyword arguments, returns a tensor.
        name: The registered name, or the dotted path of what was never registered.
        kwargs: Keyword arguments for every call.

    Example:
        >>> import torch
        >>> FunctionActivation(torch.cos, "cosine")(torch.zeros(1))
        tensor([1.])
    """

    def __init__(self, function: Callable[..., Tensor], name: str, kwargs: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.function = function
        self.name = name
        self.kwargs = dict(kwargs or {})

    def forward(self, x: Tensor) -> Tensor:
        """Call the function.

        Args:
            x: What the function takes.

        Returns:
            What the function returns.
        """
        return self.function(x, **self.kwargs)

    def extra_repr(self) -> str:
        """Return the name and the arguments for ``repr``.

        Returns:
            ``name, keyword=value, ...``.
        """
        return ", ".join([self.name, *(f"{key}={value!r}" for key, value in self.kwargs.items())])
