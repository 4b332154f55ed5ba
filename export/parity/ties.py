"""Indices of largest values: which differences are ties, that rounding or another kernel may decide otherwise."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lit_gelu.export.parity.criterion import FACTOR, floor

_CHOOSING = frozenset({"argmax", "argmin", "argsort", "max", "min", "sort", "topk"})


@dataclass(frozen=True)
class Candidates:
    """What indices were chosen from."""

    values: np.ndarray
    dim: int  # the dimension that the indices are of


class IndexTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's __init_subclass__
    """While active, keeps what each index of a largest, smallest or sorted value was chosen from."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found: dict[int, tuple[Tensor, Tensor, int]] = {}  # by the identity of the indices, which are kept

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator, and note its choice."""
        result = func(*args, **(kwargs or {}))
        if func._schema.name.removeprefix("aten::") in _CHOOSING:
            indices = result[-1] if isinstance(result, (list, tuple)) else result
            places = {argument.name: i for i, argument in enumerate(func._schema.arguments)}
            given = dict(kwargs or {})
            if "dim" in places:
                default = func._schema.arguments[places["dim"]].default_value
                dim = args[places["dim"]] if places["dim"] < len(args) else given.get("dim", default)
                if isinstance(dim, int) and not indices.is_floating_point():
                    self._found[id(indices)] = (indices, args[0].detach().clone(), dim % max(args[0].ndim, 1))
        return result

    def of(self, output: Tensor) -> Candidates | None:
        """Return what an output was chosen from; ``None`` if it is no choice or the indices were changed."""
        found = self._found.get(id(output))
        if found is None:
            return None
        values = found[1].cpu()
        return Candidates(values.double().numpy(), found[2])


def without_ties(
    y: np.ndarray,
    reference: np.ndarray,
    exact: Candidates | None,
    own: Candidates | None,
    dtype: torch.dtype,
    tolerance: float,
) -> np.ndarray:
    """Return indices with those that differ by a tie replaced by the reference's."""
    # Two values are a tie if they differ by at most twice what either may be off by: the floor of the dtype, or twice
    # what PyTorch is off by in that dtype.
    if exact is None or y.shape != reference.shape or np.array_equal(y, reference):
        return y
    values, dim = exact.values, exact.dim
    theirs, ours = (_with_dim(indices, values.ndim, dim) for indices in (y, reference))
    inside = (theirs >= 0) & (theirs < values.shape[dim])
    chosen = np.take_along_axis(values, np.where(inside, theirs, 0), dim)
    gap = np.abs(chosen - np.take_along_axis(values, ours, dim))
    known = own is not None and own.values.shape == values.shape
    spread = float(np.abs(own.values - values).max(initial=0.0)) if known and own is not None else 0.0
    allowed = 2 * max(floor(dtype, tolerance) * float(np.abs(values).max(initial=0.0)), FACTOR * spread)
    twice = (np.diff(np.sort(theirs, dim), axis=dim) == 0).any(dim, keepdims=True)
    tie = (inside & (gap <= allowed) & ~twice).reshape(y.shape)
    return np.where(tie, reference, y)


def _with_dim(indices: np.ndarray, ndim: int, dim: int) -> np.ndarray:
    """Return indices with the dimension that argmax takes away."""
    return np.expand_dims(indices, dim) if indices.ndim < ndim else indices
