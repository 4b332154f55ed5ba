"""The rounding errors of a sum and of a product, exactly: for the few places where a derivative cancels too much.

Where a derivative passes its own extremum, ``|g| + |x g'|`` is small beside the two terms whose difference it is, and
the rounding of their arguments would show. There the error is computed and put back to first order.
"""

import torch
from torch import Tensor

# Veltkamp's splitting constant, 2**ceil(digits / 2) + 1: it cuts a number into two of half as many digits.
SPLITTER = {torch.float32: 4097.0, torch.float64: 134217729.0}


def product_error(a: Tensor, b: Tensor | float) -> Tensor:
    """Return ``a b - fl(a b)``, exactly.

    Source: Dekker 1971, "A floating-point technique for extending the available precision", equation 5.7.

    Args:
        a: Below the square root of the largest number in size.
        b: The same; a number must be one of the dtype of ``a``.

    Returns:
        A tensor like ``a``.
    """
    a_high, a_low = _split(a)
    # Not torch.as_tensor, whose copy from the host would wait for the device.
    b = b if isinstance(b, Tensor) else torch.full((), b, dtype=a.dtype, device=a.device)
    b_high, b_low = _split(b)
    return ((a_high * b_high - a * b) + a_high * b_low + a_low * b_high) + a_low * b_low


def sum_error(a: Tensor | float, b: Tensor) -> Tensor:
    """Return ``a + b - fl(a + b)``, exactly.

    Source: Knuth 1969, "The Art of Computer Programming", volume 2, section 4.2.2, theorem B.

    Args:
        a: Any finite number.
        b: The same.

    Returns:
        A tensor like ``b``.
    """
    total = a + b
    rest = total - a
    return (a - (total - rest)) + (b - rest)


def _split(a: Tensor) -> tuple[Tensor, Tensor]:
    """Return two numbers of half as many digits whose sum is ``a``."""
    scaled = SPLITTER[a.dtype] * a
    high = scaled - (scaled - a)
    return high, a - high
