"""The budget for vectors as large as the model."""

import torch

from lit_gelu.curvature.loss.errors import MemoryBudgetError


def check_memory(vectors: int, size: int, dtype: torch.dtype, max_memory_mb: float | None, remedy: str) -> None:
    """Refuse to keep more vectors than the budget allows, before any of them exists.

    Args:
        vectors: How many vectors would be kept at once.
        size: Elements of a vector.
        dtype: Their type.
        max_memory_mb: The budget in units of 2^20 bytes; ``None`` means no limit.
        remedy: What the caller can do, as a sentence.

    Raises:
        MemoryBudgetError: If the vectors do not fit.

    Example:
        >>> check_memory(10, 1000, torch.float32, 1.0, "Take fewer steps.")
        >>> check_memory(300, 1000, torch.float32, 1.0, "Take fewer steps.")
        Traceback (most recent call last):
            ...
        lit_gelu.curvature.loss.errors.MemoryBudgetError: 300 vectors of 1000 float32 take 1.1 MiB, and \
max_memory_mb=1.0 allows 1.0. Take fewer steps.
    """
    needed = vectors * size * dtype.itemsize / 2**20
    if max_memory_mb is not None and needed > max_memory_mb:
        name = str(dtype).removeprefix("torch.")
        raise MemoryBudgetError(
            f"{vectors} vectors of {size} {name} take {needed:.1f} MiB, and max_memory_mb={max_memory_mb} allows "
            f"{max_memory_mb:.1f}. {remedy}"
        )
