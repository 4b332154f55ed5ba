"""Each function and its slope as Triton compiles it: float32 in, float32 out, NaN for NaN, limits at infinities.

A few operations an element: exponentials are powers of two, one instruction of the special unit, and quotients are
approximate reciprocals. The results are rounded to 16 bits, of which they are within .55 units in the last place.

A GPU takes powers of two below ``2**-126`` for 0, while ``x Phi(x)`` is ``x`` times larger. So tails are multiplied by
the root of a power, twice.
"""

import triton
import triton.language as tl

from lit_gelu.activations.gpu.coefficients import COARSE_TAIL, COARSE_TAIL_END, TAIL, TAIL_END

_Q0, _Q1, _Q2, _Q3, _Q4, _Q5, _Q6, _Q7, _Q8, _Q9 = (tl.constexpr(c / 2) for c in TAIL)
_END = tl.constexpr(TAIL_END)
_C0, _C1, _C2, _C3, _C4, _C5 = map(tl.constexpr, COARSE_TAIL)
_COARSE_END = tl.constexpr(COARSE_TAIL_END)
_LOG2E = tl.constexpr(1.4426950408889634)
_HALF_LOG2E = tl.constexpr(0.7213475204444817)
_LOG2_DENSITY = tl.constexpr(-1.3257480647361593)  # of the normal distribution at 0
_ALL = tl.constexpr(tl.PropagateNan.ALL)
_SMALLEST = tl.constexpr(1.0842022e-19)  # deviation: the root of the smallest normal number
# 2 sqrt(2 / pi) (x + .044715 x^3), the argument of the logistic function in the tanh form, in powers of two and of e
_HALF_TANH_1, _HALF_TANH_3 = tl.constexpr(1.1511040990721625), tl.constexpr(0.051471619840011914)
_SLOPE_1, _SLOPE_3 = tl.constexpr(1.5957691216057308), tl.constexpr(0.21406444588134472)


@triton.jit
def _root_of_tail(t):
    """Return the root of ``Phi(-t)`` for t from 0 to `TAIL_END`."""
    q = t * _Q9 + _Q8
    q = q * t + _Q7
    q = q * t + _Q6
    q = q * t + _Q5
    q = q * t + _Q4
    q = q * t + _Q3
    q = q * t + _Q2
    q = q * t + _Q1
    return tl.exp2(q * t + _Q0)


@triton.jit
def _distance(u):
    """Return ``|u|``, cut off where the tail is 0; NaN stays."""
    return tl.minimum(tl.abs(u), _END, propagate_nan=_ALL)


@triton.jit
def tail_in_16_bits(x):
    """Return ``2**16 Phi(-|x|)``, right to .03."""
    t = tl.minimum(tl.abs(x), _COARSE_END, propagate_nan=_ALL)
    q = t * _C5 + _C4
    q = q * t + _C3
    q = q * t + _C2
    q = q * t + _C1
    return tl.exp2(q * t + (_C0 + 16.0))


@triton.jit
def _reciprocal(d):
    """Return ``1 / d`` for a positive d, in two operations; the range that a division guards takes four more."""
    root = tl.rsqrt(d)
    return root * root


@triton.jit
def _times_logistic(x, half):
    """Return ``x / (1 + 4**half)``, for an x that is finite where half is above 85."""
    root = tl.exp2(-tl.abs(half))
    factor = tl.where(half > 0, root, 1.0)
    return (x * factor) * (factor * _reciprocal(root * root + 1.0))


@triton.jit
def _logistic(z):
    """Return ``1 / (1 + 2**z)``."""
    return _reciprocal(1.0 + tl.exp2(z))


@triton.jit
def gelu(x, p0, p1):
    """Return ``x Phi(x)``."""
    t = _distance(x)
    root = _root_of_tail(t)
    return tl.maximum(x, 0.0, propagate_nan=_ALL) - (t * root) * root


@triton.jit
def gelu_slope(x, p0, p1):
    """Return the slope of `gelu`."""
    t = _distance(x)
    root = _root_of_tail(t)
    h = root * root - t * tl.exp2(t * t * -_HALF_LOG2E + _LOG2_DENSITY)
    return tl.where(x > 0, 1.0 - h, h)


@triton.jit
def gelu_tanh(x, p0, p1):
    """Return GELU in its tanh form."""
    t = tl.clamp(x, -12.0, 12.0, propagate_nan=_ALL)
    return _times_logistic(tl.maximum(x, -12.0), t * (t * t * -_HALF_TANH_3 - _HALF_TANH_1))


@triton.jit
def gelu_tanh_slope(x, p0, p1):
    """Return the slope of `gelu_tanh`."""
    t = tl.clamp(x, -12.0, 12.0, propagate_nan=_ALL)
    square = t * t
    s = _logistic(t * (square * (-2.0 * _HALF_TANH_3) - 2.0 * _HALF_TANH_1))
    return s * (1.0 + t * (square * _SLOPE_3 + _SLOPE_1) * (1.0 - s))


@triton.jit
def swish(x, beta, p1):
    """Return ``x s(beta x)``, s being the logistic function."""
    half = tl.clamp(x * (beta * -_HALF_LOG2E), -100.0, 100.0, propagate_nan=_ALL)
    return tl.where(half > 85.0, -0.0, _times_logistic(x, half))


@triton.jit
def swish_slope(x, beta, p1):
    """Return the slope of `swish`."""
    t = tl.clamp(beta * x, -126.0, 126.0, propagate_nan=_ALL)
    s = _logistic(t * -_LOG2E)
    return s * (1.0 + t * (1.0 - s))


@triton.jit
def mish(x, p0, p1):
    """Return ``x tanh(log(1 + exp(x)))``."""
    u = tl.clamp(x, -126.0, 20.0, propagate_nan=_ALL)  # right of 20 the function is x
    root = tl.exp2(u * _HALF_LOG2E)
    e = root * root
    return (u * root) * (root * ((e + 2.0) * _reciprocal(e * (e + 2.0) + 2.0))) + tl.maximum(x - 20.0, 0.0)


@triton.jit
def mish_slope(x, p0, p1):
    """Return the slope of `mish`."""
    c = tl.clamp(x, -126.0, 20.0, propagate_nan=_ALL)
    e = tl.exp2(c * _LOG2E)
    n = e * (e + 2.0)
    r = _reciprocal(n + 2.0)
    return n * r + c * (4.0 * e * (1.0 + e) * r) * r


@triton.jit
def elu(x, alpha, p1):
    """Return x right of 0, ``alpha (exp(x) - 1)`` left of it."""
    m = tl.minimum(x, 0.0, propagate_nan=_ALL)
    near = m * (1.0 + m * (0.5 + m * (0.16666667 + m * (0.041666667 + m * 0.0083333333))))
    return tl.where(x > 0, x, alpha * tl.where(m > -0.25, near, tl.exp2(m * _LOG2E) - 1.0))


@triton.jit
def elu_slope(x, alpha, p1):
    """Return the slope of `elu`."""
    return tl.where(x > 0, 1.0, alpha * tl.exp2(tl.minimum(x, 0.0, propagate_nan=_ALL) * _LOG2E))


@triton.jit
def hard_swish(x, p0, p1):
    """Return ``x min(max(x + 3, 0), 6) / 6``."""
    right = tl.maximum(x, -3.0, propagate_nan=_ALL)
    return right * (tl.minimum(right + 3.0, 6.0, propagate_nan=_ALL) * 0.16666667)


@triton.jit
def hard_swish_slope(x, p0, p1):
    """Return the slope of `hard_swish`."""
    inner = tl.clamp(x, -3.0, 3.0, propagate_nan=_ALL) * 0.33333334 + 0.5
    return tl.where(x <= -3.0, 0.0, tl.where(x >= 3.0, 1.0, inner))


@triton.jit
def gaussian_gelu(x, mu, sigma):
    """Return ``x Phi((x - mu) / sigma)``."""
    r = _reciprocal(tl.maximum(sigma, _SMALLEST))
    u = x * r - mu * r
    root = _root_of_tail(_distance(u))
    part = tl.where(tl.abs(u) > _END, 0.0, (x * root) * root)
    return tl.where(u > 0, x - part, part)


@triton.jit
def gaussian_gelu_slopes(x, mu, sigma):
    """Return the slopes by x, mu and sigma."""
    r = _reciprocal(tl.maximum(sigma, _SMALLEST))
    shift = mu * r
    u = tl.clamp(x * r - shift, -_END, _END, propagate_nan=_ALL)
    root = _root_of_tail(tl.abs(u))
    p = root * root
    moved = (u + shift) * tl.exp2(u * u * -_HALF_LOG2E + _LOG2_DENSITY)  # 0 at the clamp
    return tl.where(u > 0, 1.0 - p, p) + moved, -moved, -moved * u


@triton.jit
def swish_slopes(x, beta, p1):
    """Return the slopes by x and beta; there is no third."""
    t = tl.clamp(beta * x, -126.0, 126.0, propagate_nan=_ALL)
    s = _logistic(t * -_LOG2E)
    bend = s * (1.0 - s)
    finite = tl.clamp(x, -1.0e18, 1.0e18)
    return s + t * bend, finite * (finite * bend), 0.0 * s


@triton.jit
def relu(x, p0, p1):
    """Return the larger of x and 0."""
    return tl.maximum(x, 0.0, propagate_nan=_ALL)


@triton.jit
def relu_slope(x, p0, p1):
    """Return the slope of `relu`; 0 at NaN, as torch's is."""
    return tl.where(x > 0, 1.0, 0.0)


@triton.jit
def sigmoid(x, p0, p1):
    """Return the logistic function."""
    return _logistic(tl.clamp(x, -126.0, 126.0, propagate_nan=_ALL) * -_LOG2E)


@triton.jit
def value(x, p0, p1, ACT: tl.constexpr):
    """Return the function called ACT."""
    if ACT == "gelu":
        return gelu(x, p0, p1)
    elif ACT == "gelu_tanh":
        return gelu_tanh(x, p0, p1)
    elif ACT == "swish":
        return swish(x, p0, p1)
    elif ACT == "mish":
        return mish(x, p0, p1)
    elif ACT == "elu":
        return elu(x, p0, p1)
    elif ACT == "hard_swish":
        return hard_swish(x, p0, p1)
    elif ACT == "gaussian_gelu":
        return gaussian_gelu(x, p0, p1)
    elif ACT == "relu":
        return relu(x, p0, p1)
    elif ACT == "sigmoid":
        return sigmoid(x, p0, p1)
    else:
        tl.static_assert(False)


@triton.jit
def slope(x, p0, p1, ACT: tl.constexpr):
    """Return the slope of the function called ACT."""
    if ACT == "gelu":
        return gelu_slope(x, p0, p1)
    elif ACT == "gelu_tanh":
        return gelu_tanh_slope(x, p0, p1)
    elif ACT == "swish":
        return swish_slope(x, p0, p1)
    elif ACT == "mish":
        return mish_slope(x, p0, p1)
    elif ACT == "elu":
        return elu_slope(x, p0, p1)
    elif ACT == "hard_swish":
        return hard_swish_slope(x, p0, p1)
    elif ACT == "gaussian_gelu":
        by_x, _by_mu, _by_sigma = gaussian_gelu_slopes(x, p0, p1)
        return by_x
    elif ACT == "relu":
        return relu_slope(x, p0, p1)
    else:
        tl.static_assert(False)


@triton.jit
def gelu_both(x, p0, p1):
    """Return the function and its slope from one tail."""
    t = _distance(x)
    root = _root_of_tail(t)
    p = root * root
    h = p - t * tl.exp2(t * t * -_HALF_LOG2E + _LOG2_DENSITY)
    return tl.maximum(x, 0.0, propagate_nan=_ALL) - t * p, tl.where(x > 0, 1.0 - h, h)


@triton.jit
def gelu_tanh_both(x, p0, p1):
    """Return the function and its slope from one exponential."""
    t = tl.clamp(x, -12.0, 12.0, propagate_nan=_ALL)
    square = t * t
    s = _logistic(t * (square * (-2.0 * _HALF_TANH_3) - 2.0 * _HALF_TANH_1))
    return tl.maximum(x, -12.0) * s, s * (1.0 + t * (square * _SLOPE_3 + _SLOPE_1) * (1.0 - s))


@triton.jit
def swish_both(x, beta, p1):
    """Return the function and its slope from one exponential."""
    t = tl.clamp(x * beta, -126.0, 126.0, propagate_nan=_ALL)
    s = _logistic(t * -_LOG2E)
    return tl.where(t < -125.0, -0.0, x * s), s * (1.0 + t * (1.0 - s))


@triton.jit
def sigmoid_both(x, p0, p1):
    """Return the function and its slope."""
    s = sigmoid(x, p0, p1)
    return s, s * (1.0 - s)


@triton.jit
def both(x, p0, p1, ACT: tl.constexpr):
    """Return the function called ACT and its slope; in 16 bits the function lacks the end of its left tail."""
    if ACT == "gelu":
        return gelu_both(x, p0, p1)
    elif ACT == "gelu_tanh":
        return gelu_tanh_both(x, p0, p1)
    elif ACT == "swish":
        return swish_both(x, p0, p1)
    elif ACT == "sigmoid":
        return sigmoid_both(x, p0, p1)
    else:
        return value(x, p0, p1, ACT), slope(x, p0, p1, ACT)


@triton.jit
def slopes(x, p0, p1, ACT: tl.constexpr):
    """Return the slopes of the function called ACT by x and by its two parameters."""
    if ACT == "gaussian_gelu":
        return gaussian_gelu_slopes(x, p0, p1)
    elif ACT == "swish":
        return swish_slopes(x, p0, p1)
    else:
        tl.static_assert(False)
