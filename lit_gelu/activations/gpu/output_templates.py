"""Kernels for functions whose output alone is kept, with a bit for the branch: eight elements share a byte.

A block is ``[bytes, 8]``: what is beside each other in memory is in one row, and bit i of a byte is that of element i.
"""

import triton
import triton.language as tl

from lit_gelu.activations.gpu.coefficients import LOGARITHM
from lit_gelu.activations.gpu.device import value

_ALL = tl.constexpr(tl.PropagateNan.ALL)
_M0, _M1, _M2, _M3, _M4 = map(tl.constexpr, LOGARITHM)
_MANTISSA = tl.constexpr(0x7FFFFF)
_ONE = tl.constexpr(0x3F800000)  # the bits of 1.0
_TINY = tl.constexpr(1e-12)  # has a root, and one without effect
_MOST = tl.constexpr(29.2)  # octaves below the lowest value; what is nearer to 0 has a slope of 1e-9 and less


@triton.jit
def _logarithm(size):
    """Return ``log2(size) + 127`` for a normal number, or 0 and little for smaller ones."""
    bits = size.to(tl.int32, bitcast=True)
    m = ((bits & _MANTISSA) | _ONE).to(tl.float32, bitcast=True)
    found = m * _M4 + _M3
    found = found * m + _M2
    found = found * m + _M1
    return (bits >> 23).to(tl.float32) + (found * m + _M0)


@triton.jit
def valley_forward(x_ptr, y_ptr, bits_ptr, n, p0, lowest, ACT: tl.constexpr, BLOCK: tl.constexpr):
    """Compute ``y = f(x)``, and for each element whether it is right of the lowest point."""
    byte = tl.program_id(0).to(tl.int64) * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    bit = tl.arange(0, 8)
    offsets = byte[:, None] * 8 + bit[None, :]
    inside = offsets < n
    x = tl.load(x_ptr + offsets, mask=inside).to(tl.float32)
    tl.store(y_ptr + offsets, value(x, p0, 0.0, ACT).to(y_ptr.dtype.element_ty), mask=inside)
    right = (inside & (x >= lowest)).to(tl.int32) << bit[None, :]
    tl.store(bits_ptr + byte, tl.sum(right, 1).to(tl.uint8), mask=byte * 8 < n)


@triton.jit
def valley_backward(
    g_ptr,
    y_ptr,
    bits_ptr,
    d_ptr,
    n,
    scale,
    factor,
    lowest,
    octaves,
    least,
    end,
    r0,
    r1,
    r2,
    r3,
    r4,
    r5,
    r6,
    r7,
    l0,
    l1,
    l2,
    l3,
    l4,
    l5,
    BLOCK: tl.constexpr,
):
    """Compute ``d = g f'``, f' being a polynomial in the root of the height above the lowest value, or left of it."""
    byte = tl.program_id(0).to(tl.int64) * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    bit = tl.arange(0, 8)
    offsets = byte[:, None] * 8 + bit[None, :]
    inside = offsets < n
    y = tl.load(y_ptr + offsets, mask=inside).to(tl.float32) * scale
    g = tl.load(g_ptr + offsets, mask=inside).to(tl.float32)
    bits = tl.load(bits_ptr + byte, mask=byte * 8 < n, other=0).to(tl.int32)
    height = tl.maximum(y - lowest, least, propagate_nan=_ALL)
    near = tl.minimum(height, end, propagate_nan=_ALL)
    u = near * tl.rsqrt(near)
    right = u * r7 + r6
    right = right * u + r5
    right = right * u + r4
    right = right * u + r3
    right = right * u + r2
    right = right * u + r1
    right = tl.where(height >= end, 1.0, right * u + r0)
    size = tl.abs(y)
    deeper = tl.clamp(octaves - _logarithm(size), _TINY, _MOST)
    z = deeper * tl.rsqrt(deeper)
    left = z * l5 + l4
    left = left * z + l3
    left = left * z + l2
    left = left * z + l1
    left = -size * (left * z + l0)
    slope = tl.where((bits[:, None] >> bit[None, :]) & 1 != 0, right, left) * factor
    tl.store(d_ptr + offsets, (g * slope).to(d_ptr.dtype.element_ty), mask=inside)
