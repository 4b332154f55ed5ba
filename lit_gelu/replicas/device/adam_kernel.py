"""The kernel of Adam over a stack, see `lit_gelu.replicas.device.adam`: every number is read and written once."""

import triton
import triton.language as tl


@triton.jit
def moved(p, m, v, g, size, root, rest1, beta2, rest2, eps):
    """Return parameters and both moments after a step with gradients ``g``."""
    m += (g - m) * rest1
    v = v * beta2 + g * rest2 * g
    p -= m * size / (tl.sqrt(v) / root + eps)
    return p, m, v


@triton.jit
def adam_step(
    p_ptr,
    m_ptr,
    v_ptr,
    g_ptr,
    sizes_ptr,
    root_ptr,
    active_ptr,
    places_ptr,
    n,
    rest1,
    beta2,
    rest2,
    eps,
    BLOCK: tl.constexpr,
):
    """Make a step of rows of n elements: program (block of n, row); ``places`` says whose a row is."""
    row = tl.program_id(1)
    replica = tl.load(places_ptr + row)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < n * tl.load(active_ptr + replica)  # of an inactive one nothing is
    offsets = row.to(tl.int64) * n + columns
    g = tl.load(g_ptr + offsets, mask=inside)
    m = tl.load(m_ptr + offsets, mask=inside)
    v = tl.load(v_ptr + offsets, mask=inside)
    p = tl.load(p_ptr + offsets, mask=inside)
    size, root = tl.load(sizes_ptr + replica), tl.load(root_ptr)
    p, m, v = moved(p, m, v, g, size, root, rest1, beta2, rest2, eps)
    tl.store(m_ptr + offsets, m, mask=inside)
    tl.store(v_ptr + offsets, v, mask=inside)
    tl.store(p_ptr + offsets, p, mask=inside)
