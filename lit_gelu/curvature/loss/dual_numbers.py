"""Forward-mode differentiation of a module's closure."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from lit_gelu.curvature.loss.layout import ParameterLayout


@contextmanager
def dual_parameters(module: nn.Module, layout: ParameterLayout, vector: Tensor) -> Iterator[list[Tensor]]:
    """Let a module compute with dual numbers: its parameters plus an infinitesimal step along a vector.

    Args:
        module: The owner of the parameters.
        layout: The parameters.
        vector: The tangent, shape ``[size]``.

    Yields:
        The dual tensors that stand in for the parameters, in the order of the layout.

    Example:
        >>> module = nn.Linear(2, 1, bias=False)
        >>> with dual_parameters(module, ParameterLayout({"weight": module.weight}), torch.tensor([1.0, 10.0])):
        ...     tangent_of(module(torch.tensor([2.0, 3.0]))).tolist()
        [32.0]
    """
    _load_formulas()
    tensors, pieces = list(layout.tensors.values()), layout.split(vector)
    with forward_ad.dual_level():
        duals = [_dual(parameter, piece.contiguous()) for parameter, piece in zip(tensors, pieces, strict=True)]
        with replaced_parameters(module, dict(zip(tensors, duals, strict=True))):
            yield duals


def tangent_of(value: Tensor) -> Tensor | None:
    """Return the infinitesimal part of a dual tensor, inside `dual_parameters`.

    Args:
        value: Any tensor.

    Returns:
        A tensor of its shape; ``None`` if it does not depend on the dual parameters.
    """
    return cast("Tensor | None", forward_ad.unpack_dual(value).tangent)  # type: ignore[no-untyped-call]


@contextmanager
def replaced_parameters(module: nn.Module, replacements: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Let a module and its parts use other tensors for some of their parameters, wherever these occur.

    Args:
        module: The owner.
        replacements: The tensor to use in the place of each parameter.

    Yields:
        Nothing.

    Example:
        >>> module = nn.Linear(2, 1, bias=False)
        >>> with replaced_parameters(module, {module.weight: torch.tensor([[1.0, 2.0]])}):
        ...     module(torch.tensor([3.0, 4.0])).item()
        11.0
    """
    places = [
        (part, name, parameter)
        for part in module.modules()
        for name, parameter in part._parameters.items()
        if parameter is not None and parameter in replacements
    ]
    try:
        for part, name, parameter in places:
            part._parameters[name] = replacements[parameter]  # type: ignore[assignment]
        yield
    finally:
        for part, name, parameter in places:
            part._parameters[name] = parameter


@cache
def _load_formulas() -> None:
    """Make torch load its table of forward derivatives, which it compiles with a function that it deprecates."""
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.filterwarnings("ignore", message=".*torch.jit.script.*", category=FutureWarning)
        warnings.filterwarnings("ignore", message=".*torch.jit.script.*", category=DeprecationWarning)
        _dual(torch.zeros(1), torch.zeros(1))


def _dual(value: Tensor, tangent: Tensor) -> Tensor:
    """Return value and tangent as one dual tensor."""
    return cast("Tensor", forward_ad.make_dual(value, tangent))  # type: ignore[no-untyped-call]
