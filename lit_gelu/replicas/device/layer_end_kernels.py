"""The kernels of what follows a product in a layer, see `layer_ends` beside this file: bias, activation, dropout."""

import triton
import triton.language as tl
from triton.language.random import philox_impl

# Numbers of activations, as `lit_gelu.replicas.device.layer_ends` counts them.
RELU = tl.constexpr(0)
GELU = tl.constexpr(1)
GELU_TANH = tl.constexpr(2)
ELU = tl.constexpr(3)


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _expm1(x):
    """Compute ``exp(x) - 1`` for x < 0; near 0 by its series, where the difference has no digits."""
    near = x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6 * (1 + x / 7))))))
    return tl.where(x > -0.35, near, tl.exp(x) - 1)


@triton.jit
def activated(u, kind, alpha):
    """Compute an activation by its number; NaN stays NaN."""
    y = u
    if kind == RELU:
        y = tl.where(u < 0, 0.0, u)
    elif kind == GELU:
        y = 0.5 * u * (1 + tl.erf(u * 0.70710678118654752))
    elif kind == GELU_TANH:
        y = u * _sigmoid(1.5957691216057308 * (u + 0.044715 * u * u * u))
    elif kind == ELU:
        y = tl.where(u > 0, u, alpha * _expm1(u))
    else:  # SiLU
        y = u * _sigmoid(u)
    return y


@triton.jit
def slope(u, kind, alpha):
    """Compute an activation's derivative by its number."""
    d = u
    if kind == RELU:
        d = tl.where(u > 0, 1.0, 0.0)
    elif kind == GELU:
        d = 0.5 * (1 + tl.erf(u * 0.70710678118654752)) + u * 0.39894228040143268 * tl.exp(-0.5 * u * u)
    elif kind == GELU_TANH:
        s = _sigmoid(1.5957691216057308 * (u + 0.044715 * u * u * u))
        d = s + u * s * (1 - s) * 1.5957691216057308 * (1 + 0.134145 * u * u)
    elif kind == ELU:
        d = tl.where(u > 0, 1.0, alpha * tl.exp(u))
    else:
        s = _sigmoid(u)
        d = s * (1 + u * (1 - s))
    return d


@triton.jit
def factors(seed, step, highest, scale, site, first, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Draw what dropout multiplies a tile with, as `lit_gelu.tasks.keyed_kernels`; ``columns`` is a multiple of 8."""
    calls: tl.constexpr = COLUMNS // 8
    rows = first + tl.arange(0, ROWS)
    places = tl.program_id(0) * calls + tl.arange(0, calls)
    call = rows[:, None].to(tl.int64) * (columns // 8) + places[None, :]
    none = call * 0
    a, b, c, d = philox_impl(
        (call + 1).to(tl.uint64),
        (none + step).to(tl.uint64),
        none.to(tl.uint64),
        none.to(tl.uint64),
        (none + seed).to(tl.uint64),
        (none + site).to(tl.uint64),
    )
    both = tl.join(tl.join(a, c), tl.join(b, d))
    word = tl.reshape(tl.join(both.to(tl.uint32), (both >> 32).to(tl.uint32)), [ROWS, COLUMNS])
    return tl.where(word <= highest.to(tl.uint32, bitcast=True), scale, 0.0)


@triton.jit(do_not_specialize=["site"])  # else each of the first layers would be compiled for itself
def layer_end(
    z_ptr,
    bias_ptr,
    y_ptr,
    kinds_ptr,
    alphas_ptr,
    seeds_ptr,
    steps_ptr,
    highest_ptr,
    scales_ptr,
    rows,
    columns,
    site,
    DROPS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Compute ``y`` of products ``[replicas, rows, columns]``: program (block of columns, block of rows, replica)."""
    replica = tl.program_id(2)
    first = tl.program_id(1) * ROWS
    row = first + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    place = replica.to(tl.int64) * rows * columns + row[:, None] * columns + column[None, :]
    bias = tl.load(bias_ptr + replica * columns + column, mask=column < columns)
    u = tl.load(z_ptr + place, mask=inside, other=0.0) + bias[None, :]
    y = activated(u, tl.load(kinds_ptr + replica), tl.load(alphas_ptr + replica))
    if DROPS:
        seed, step = tl.load(seeds_ptr + replica), tl.load(steps_ptr + replica) - 1
        highest, scale = tl.load(highest_ptr + replica), tl.load(scales_ptr + replica)
        y *= factors(seed, step, highest, scale, site, first, columns, ROWS=ROWS, COLUMNS=COLUMNS)
    tl.store(y_ptr + place, y, mask=inside)


@triton.jit(do_not_specialize=["site"])
def layer_end_backward(
    dy_ptr,
    z_ptr,
    bias_ptr,
    dz_ptr,
    dbias_ptr,
    kinds_ptr,
    alphas_ptr,
    seeds_ptr,
    steps_ptr,
    highest_ptr,
    scales_ptr,
    rows,
    columns,
    site,
    DROPS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Compute the gradients of products and bias: program (block of columns, replica), all rows, in their order."""
    replica = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    bias = tl.load(bias_ptr + replica * columns + column, mask=column < columns)
    kind, alpha = tl.load(kinds_ptr + replica), tl.load(alphas_ptr + replica)
    total = tl.zeros([COLUMNS], dtype=tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        place = replica.to(tl.int64) * rows * columns + row[:, None] * columns + column[None, :]
        dz = tl.load(dy_ptr + place, mask=inside, other=0.0)
        if DROPS:
            seed, step = tl.load(seeds_ptr + replica), tl.load(steps_ptr + replica) - 1
            highest, scale = tl.load(highest_ptr + replica), tl.load(scales_ptr + replica)
            dz *= factors(seed, step, highest, scale, site, first, columns, ROWS=ROWS, COLUMNS=COLUMNS)
        dz *= slope(tl.load(z_ptr + place, mask=inside, other=0.0) + bias[None, :], kind, alpha)
        tl.store(dz_ptr + place, dz, mask=inside)
        total += tl.sum(tl.where(inside, dz, 0.0), axis=0)
    tl.store(dbias_ptr + replica * columns + column, total, mask=column < columns)
