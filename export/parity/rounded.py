"""Computes in float32 as 16 bits would: every operator's result is rounded."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


class RoundedTo(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's __init_subclass__
    """While active, what operators make in float32 has the values of another dtype.

    PyTorch's kernels for 16 bits compute in float32 and round once, so that is what they would give; it also works
    where ``forward`` or an operator refuses 16 bits.

    Args:
        dtype: Which one.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtype = dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator, and round what it made; a view has rounded values already."""
        made = func(*args, **(kwargs or {}))
        aliases = [returned.alias_info for returned in func._schema.returns]
        if any(alias is not None and not alias.is_write for alias in aliases):
            return made
        return tree_map_only(Tensor, self._rounded, made)

    def _rounded(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(tensor.to(self.dtype)) if tensor.dtype == torch.float32 else tensor
