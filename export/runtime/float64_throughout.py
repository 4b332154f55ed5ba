"""Lets a module compute in float64 though its ``forward`` asks for float32."""

from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_REINTERPRETING = {Tensor.view}  # the bits of a tensor, or a shape


class Float64Throughout(TorchFunctionMode):
    """While active, what would be made in float32 is made in float64: ``x.float()``, ``torch.linspace(0, 1, 9)``.

    Without it a module in float64 fails where its ``forward`` turns integers into float32 ahead of a layer, as
    embeddings of time steps do, and rounds where it computes a norm in float32.
    """

    def __enter__(self) -> Self:
        self._default = torch.get_default_dtype()
        super().__enter__()  # type: ignore[no-untyped-call]
        torch.set_default_dtype(torch.float64)
        return self

    def __exit__(self, *error: object) -> None:
        torch.set_default_dtype(self._default)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch with float64 in the place of float32."""
        kwargs = dict(kwargs or {})
        if func is Tensor.float:
            return args[0].to(torch.float64, **kwargs)
        if func not in _REINTERPRETING:
            args = tuple(map(_in_float64, args))
            kwargs = {name: _in_float64(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _in_float64(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
