"""The kernel of dropout by key, see `lit_gelu.tasks.keyed_noise`: the same masks as NumPy's generator gives."""

import triton
import triton.language as tl
from triton.language.random import philox_impl


@triton.jit(do_not_specialize=["site", "rank"])  # else each of the first layers would be compiled for itself
def keyed_dropout(x_ptr, y_ptr, seeds_ptr, steps_ptr, highest_ptr, scales_ptr, n, site, rank, BLOCK: tl.constexpr):
    """Compute ``y = x`` times scale or 0, of rows of n elements: program (block of n, row)."""
    calls: tl.constexpr = BLOCK // 8
    row = tl.program_id(1)
    call = tl.program_id(0).to(tl.int64) * calls + tl.arange(0, calls)
    none = call * 0
    step, seed = tl.load(steps_ptr + row), tl.load(seeds_ptr + row)
    a, b, c, d = philox_impl(
        (call + 1).to(tl.uint64),
        (none + step - 1).to(tl.uint64),
        (none + rank).to(tl.uint64),
        none.to(tl.uint64),
        (none + seed).to(tl.uint64),
        (none + site).to(tl.uint64),
    )
    both = tl.join(tl.join(a, c), tl.join(b, d))  # a, b, c, d where it is flattened
    word = tl.reshape(tl.join(both.to(tl.uint32), (both >> 32).to(tl.uint32)), [BLOCK])
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < n
    offsets = row.to(tl.int64) * n + columns
    is_kept = word <= tl.load(highest_ptr + row).to(tl.uint32, bitcast=True)
    x = tl.load(x_ptr + offsets, mask=inside)
    if x_ptr.dtype.element_ty.primitive_bitwidth < 32:
        x = x.to(tl.float32)
    y = x * tl.where(is_kept, tl.load(scales_ptr + row), 0.0)
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=inside)
