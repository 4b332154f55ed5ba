"""Kernels that carry a function of `device` over a tensor, chosen by its name when Triton compiles them.

Offsets are 64-bit: a tensor may have more than 2**31 elements. Parameters that are learned are read from memory, and
their gradients summed in float32, a partial sum for each program.
"""

import triton
import triton.language as tl

from lit_gelu.activations.gpu.device import both, slope, slopes, tail_in_16_bits, value
from lit_gelu.activations.gpu.output_templates import valley_backward as valley_backward
from lit_gelu.activations.gpu.output_templates import valley_forward as valley_forward


@triton.jit
def unary_forward(x_ptr, y_ptr, n, p0, p1, ACT: tl.constexpr, BLOCK: tl.constexpr):
    """Compute ``y = f(x)``."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    x = tl.load(x_ptr + offsets, mask=inside).to(tl.float32)
    tl.store(y_ptr + offsets, value(x, p0, p1, ACT).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def unary_backward(g_ptr, x_ptr, d_ptr, n, p0, p1, ACT: tl.constexpr, BLOCK: tl.constexpr):
    """Compute ``d = g f'(x)``."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    x = tl.load(x_ptr + offsets, mask=inside).to(tl.float32)
    g = tl.load(g_ptr + offsets, mask=inside).to(tl.float32)
    tl.store(d_ptr + offsets, (g * slope(x, p0, p1, ACT)).to(d_ptr.dtype.element_ty), mask=inside)


@triton.jit
def learned_forward(x_ptr, y_ptr, p0_ptr, p1_ptr, inner, channels, ACT: tl.constexpr, BLOCK: tl.constexpr):
    """Compute ``y = f(x, p0[c], p1[c])`` of ``[outer, channels, inner]``: program (block of inner, channel, outer)."""
    channel = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64) * channels + channel
    p0 = tl.load(p0_ptr + channel)
    p1 = tl.load(p1_ptr + channel)
    columns = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < inner
    offsets = row * inner + columns
    x = tl.load(x_ptr + offsets, mask=inside).to(tl.float32)
    tl.store(y_ptr + offsets, value(x, p0, p1, ACT).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def learned_backward(
    g_ptr,
    x_ptr,
    d_ptr,
    p0_ptr,
    p1_ptr,
    sums_ptr,
    inner,
    channels,
    ACT: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Compute ``d = g df/dx``, and sums of ``g df/dp0`` and ``g df/dp1``: ``[2, channels, outer, blocks of inner]``."""
    channel = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64) * channels + channel
    p0 = tl.load(p0_ptr + channel)
    p1 = tl.load(p1_ptr + channel)
    first = tl.zeros([BLOCK], tl.float32)
    second = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(BLOCKS):
        columns = (tl.program_id(0).to(tl.int64) * BLOCKS + i) * BLOCK + tl.arange(0, BLOCK)
        inside = columns < inner
        offsets = row * inner + columns
        x = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(g_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        by_x, by_p0, by_p1 = slopes(x, p0, p1, ACT)
        tl.store(d_ptr + offsets, (g * by_x).to(d_ptr.dtype.element_ty), mask=inside)
        first += g * by_p0
        second += g * by_p1
    outer, blocks = tl.num_programs(2), tl.num_programs(0)
    place = (channel.to(tl.int64) * outer + tl.program_id(2)) * blocks + tl.program_id(0)
    tl.store(sums_ptr + place, tl.sum(first, 0))
    tl.store(sums_ptr + place + outer.to(tl.int64) * blocks * channels, tl.sum(second, 0))


@triton.jit
def learned_forward_last(x_ptr, y_ptr, p0_ptr, p1_ptr, n, channels, rows, ACT: tl.constexpr, BLOCK: tl.constexpr):
    """Compute ``y = f(x, p0[c], p1[c])`` of n elements in rows of channels: program (some rows, block of channels)."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = columns < channels
    p0 = tl.load(p0_ptr + columns, mask=there, other=1.0)
    p1 = tl.load(p1_ptr + columns, mask=there, other=1.0)
    offsets = tl.program_id(0).to(tl.int64) * rows * channels + columns
    for _ in range(rows):
        inside = there & (offsets < n)
        x = tl.load(x_ptr + offsets, mask=inside).to(tl.float32)
        tl.store(y_ptr + offsets, value(x, p0, p1, ACT).to(y_ptr.dtype.element_ty), mask=inside)
        offsets += channels


@triton.jit
def learned_backward_last(
    g_ptr, x_ptr, d_ptr, p0_ptr, p1_ptr, sums_ptr, n, channels, rows, ACT: tl.constexpr, BLOCK: tl.constexpr
):
    """As `learned_backward`, of what `learned_forward_last` computes; sums ``[programs, 2, channels]``."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = columns < channels
    p0 = tl.load(p0_ptr + columns, mask=there, other=1.0)
    p1 = tl.load(p1_ptr + columns, mask=there, other=1.0)
    first = tl.zeros([BLOCK], tl.float32)
    second = tl.zeros([BLOCK], tl.float32)
    offsets = tl.program_id(0).to(tl.int64) * rows * channels + columns
    for _ in range(rows):
        inside = there & (offsets < n)
        x = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(g_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        by_x, by_p0, by_p1 = slopes(x, p0, p1, ACT)
        tl.store(d_ptr + offsets, (g * by_x).to(d_ptr.dtype.element_ty), mask=inside)
        first += g * by_p0
        second += g * by_p1
        offsets += channels
    start = tl.program_id(0).to(tl.int64) * 2 * channels
    tl.store(sums_ptr + start + columns, first, mask=there)
    tl.store(sums_ptr + start + channels + columns, second, mask=there)


@triton.jit
def gated_forward(x_ptr, y_ptr, n, p0, ACT: tl.constexpr, GATE: tl.constexpr, BLOCK: tl.constexpr):
    """Compute ``y = f(gate) value`` of rows of 2 halves of ``n``, the gate in half GATE: program (row, block of n)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < n
    gates = x_ptr + row * (2 * n) + GATE * n + columns
    values = x_ptr + row * (2 * n) + (1 - GATE) * n + columns
    a = tl.load(gates, mask=inside).to(tl.float32)
    b = tl.load(values, mask=inside).to(tl.float32)
    tl.store(y_ptr + row * n + columns, (value(a, p0, p0, ACT) * b).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def gated_backward(g_ptr, x_ptr, d_ptr, n, p0, ACT: tl.constexpr, GATE: tl.constexpr, BLOCK: tl.constexpr):
    """Compute the gradients by both halves of what `gated_forward` computes."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < n
    gates = row * (2 * n) + GATE * n + columns
    values = row * (2 * n) + (1 - GATE) * n + columns
    a = tl.load(x_ptr + gates, mask=inside).to(tl.float32)
    b = tl.load(x_ptr + values, mask=inside).to(tl.float32)
    g = tl.load(g_ptr + row * n + columns, mask=inside).to(tl.float32)
    dtype = d_ptr.dtype.element_ty
    f, df = both(a, p0, p0, ACT)
    tl.store(d_ptr + gates, (g * b * df).to(dtype), mask=inside)
    tl.store(d_ptr + values, (g * f).to(dtype), mask=inside)


@triton.jit
def zero_identity_forward(x_ptr, y_ptr, seed_ptr, n, BLOCK: tl.constexpr):
    """Keep each x with probability Phi(x); what is dropped becomes -0.0, what is kept is never that.

    Each call of the generator (Philox, 7 rounds) gives eight numbers of 16 bits: probabilities are multiples of 2**-16.
    """
    calls: tl.constexpr = BLOCK // 8
    call = tl.program_id(0).to(tl.int64) * calls + tl.arange(0, calls)
    a, b, c, d = tl.randint4x(tl.load(seed_ptr), call.to(tl.int32), n_rounds=7)
    words = tl.join(tl.join(a, b), tl.join(c, d)).to(tl.uint32, bitcast=True)
    # A number of 16 bits as the lower digits of a float32, 2**23 above its value.
    digits = tl.reshape(tl.join((words & 0xFFFF) | 0x4B000000, (words >> 16) | 0x4B000000), [BLOCK])
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    x = tl.load(x_ptr + offsets, mask=inside).to(tl.float32)
    p = tail_in_16_bits(x)
    dropped = digits.to(tl.float32, bitcast=True) >= tl.where(x > 0, 8454144.0 - p, 8388608.0 + p)  # NaN is not
    zero = tl.full([], -2147483648, tl.int32).to(tl.float32, bitcast=True)  # Triton 3.6 reads -0.0 as 0.0
    y = tl.where(dropped, zero, x + 0.0)
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def zero_identity_backward(g_ptr, y_ptr, d_ptr, n, BLOCK: tl.constexpr):
    """Compute ``d = g`` where y was kept, else 0."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    y = tl.load(y_ptr + offsets, mask=inside)
    g = tl.load(g_ptr + offsets, mask=inside)
    if y.dtype.primitive_bitwidth == 16:
        dropped = y.to(tl.int16, bitcast=True) == -32768
    else:
        dropped = y.to(tl.int32, bitcast=True) == -2147483648
    tl.store(d_ptr + offsets, tl.where(dropped, 0.0, g), mask=inside)
