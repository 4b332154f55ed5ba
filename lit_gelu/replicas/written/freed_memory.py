"""What the C library does with memory that a step frees: it is kept for the next step, which asks for as much."""

import torch

_MOST = 31 * 2**20  # bytes; glibc keeps blocks of less than 32 MiB, and twice as much in all


def keep_freed_memory() -> None:
    """Let the C library of Linux keep up to 62 MiB that the process frees, from now on; elsewhere nothing changes.

    glibc gives free memory back to the system where there is more of it than twice the largest block that was ever
    freed (``mallopt(3)``, ``M_TRIM_THRESHOLD``). Stacks free more than that in each step, and the next one pays for
    every page again: the system finds and clears it. So a large block, which nobody writes to, is freed here.
    """
    torch.empty(_MOST, dtype=torch.uint8)
