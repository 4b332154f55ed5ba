"""How far a model's output moves when something in the model is replaced."""

from collections.abc import Iterable

import torch
from torch import Tensor

from lit_gelu.curvature.activation.statistics import accumulation_dtype
from lit_gelu.curvature.errors import CurvatureArgumentError


def jump_sums(old: Iterable[Tensor], new: Iterable[Tensor]) -> Tensor:
    """Sum, over the tensors of an output, what `relative_jump` needs.

    Args:
        old: The output before, as tensors.
        new: The output after, tensors of the same shapes.

    Returns:
        ``[||new - old||^2, ||old||^2, max |new - old|]`` in float64 (float32 on ``mps``), on the device of the first
        tensor. The first two add up over ranks; the third is a maximum.

    Raises:
        CurvatureArgumentError: If a shape differs, or there is no tensor.

    Example:
        >>> jump_sums([torch.tensor([3.0, 4.0])], [torch.tensor([3.0, 3.0])]).tolist()
        [1.0, 25.0, 1.0]
    """
    rows: list[Tensor] = []
    for before, after in zip(old, new, strict=True):
        if before.shape != after.shape:
            raise CurvatureArgumentError(
                f"The output changed its shape from {tuple(before.shape)} to {tuple(after.shape)}."
            )
        dtype = accumulation_dtype(before.device)
        before = before.detach().to(dtype)
        difference = after.detach().to(before) - before
        largest = difference.abs().amax() if difference.numel() else difference.sum()
        rows.append(torch.stack([difference.square().sum(), before.square().sum(), largest]))
    if not rows:
        raise CurvatureArgumentError("The output holds no floating-point tensor, so its jump cannot be measured.")
    table = torch.stack([row.to(rows[0].device) for row in rows])
    return torch.cat([table[:, :2].sum(0), table[:, 2:].amax(0)])


def relative_jump(sums: Tensor) -> Tensor:
    """Return ``||new - old|| / ||old||``.

    Args:
        sums: What `jump_sums` returns.

    Returns:
        A scalar; NaN if both outputs are zero throughout.

    Example:
        >>> relative_jump(jump_sums([torch.tensor([3.0, 4.0])], [torch.tensor([3.0, 3.0])])).item()
        0.2
    """
    return (sums[0] / sums[1]).sqrt()
