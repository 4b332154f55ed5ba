"""The kernels of hidden layers that are measured: of many samples, without noise, weights split beforehand.

A number of float32 is the sum of two of TF32 but for its last bit or two. Products of three such pairs have about the
digits of float32, as those of ``tf32x3`` in `net_kernels`; of weights that are split once, Hopper's tensor cores read
both parts from shared memory by themselves.
"""

import triton
import triton.language as tl

from lit_gelu.replicas.device.layer_end_kernels import activated


@triton.jit
def _rounded(x):
    """Round to TF32, of whose digits tensor cores read no more."""
    return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def _split(x):
    """Return two numbers of TF32 whose sum is about ``x``; what is infinite or no number stays so."""
    high = tl.where(tl.abs(x) < float("inf"), _rounded(x), x)
    return high, tl.where(tl.abs(high) < float("inf"), _rounded(x - high), 0.0)


@triton.jit
def split_weights(w_ptr, high_ptr, low_ptr, n, BLOCK: tl.constexpr):
    """Split n numbers: program (block)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    high, low = _split(tl.load(w_ptr + at, mask=at < n, other=0.0))
    tl.store(high_ptr + at, high, mask=at < n)
    tl.store(low_ptr + at, low, mask=at < n)


@triton.jit
def measured_layer(
    x_ptr, high_ptr, low_ptr, b_ptr, y_ptr, members_ptr, kinds_ptr, alphas_ptr, samples, units, width,
    SHARED: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Compute a hidden layer: program (block of columns, block of samples, place in ``members``).

    Inputs are those of each replica, or with ``SHARED`` the same for all.
    """
    features = units * UNIT  # so the compiler knows what they are a multiple of, and reads as many at once
    replica = tl.load(members_ptr + tl.program_id(2))
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    own = tl.program_id(2).to(tl.int64) * samples + row
    sample, weights = own, replica.to(tl.int64) * width * features
    if SHARED:
        sample = row.to(tl.int64)
    u = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for first in range(0, features, DEPTH):
        depth = first + tl.arange(0, DEPTH)
        is_input = (row < samples)[:, None] & (depth < features)[None, :]
        x = tl.load(x_ptr + sample[:, None] * features + depth[None, :], mask=is_input, other=0.0)
        at, inside = (
            column[None, :] * features + depth[:, None],
            (column < width)[None, :] & (depth < features)[:, None],
        )
        high = tl.load(high_ptr + weights + at, mask=inside, other=0.0)
        low = tl.load(low_ptr + weights + at, mask=inside, other=0.0)
        x_high, x_low = _split(x)
        u = tl.dot(x_high, low, u, input_precision="tf32")
        u = tl.dot(x_low, high, u, input_precision="tf32")
        u = tl.dot(x_high, high, u, input_precision="tf32")
    u += tl.load(b_ptr + replica * width + column, mask=column < width, other=0.0)[None, :]
    y = activated(u, tl.load(kinds_ptr + replica), tl.load(alphas_ptr + replica))
    is_output = (row < samples)[:, None] & (column < width)[None, :]
    tl.store(y_ptr + own[:, None] * width + column[None, :], y, mask=is_output)
