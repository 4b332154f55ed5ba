"""Functions and slopes in float64, from scipy and numpy, with their limits at infinities."""

from collections.abc import Callable

import numpy as np
from scipy.special import expit, ndtr

Array = np.ndarray
_FAR = 800.0  # beyond it exp is 0 or infinite in float64


def _tailed(x: Array, value: Array) -> Array:
    """Return a function that goes to 0 on the left and to x on the right."""
    return np.where(x == np.inf, np.inf, np.where(x < -_FAR, 0.0, value))


def _bounded(x: Array) -> Array:
    return np.clip(x, -_FAR, np.finfo(np.float64).max)


def gelu(x: Array) -> tuple[Array, Array]:
    c = np.clip(x, -40.0, 40.0)
    density = np.exp(-0.5 * c * c) / np.sqrt(2 * np.pi)
    return _tailed(x, _bounded(x) * ndtr(c)), ndtr(c) + c * density


def gaussian_gelu(mu: float, sigma: float) -> Callable[[Array], tuple[Array, Array]]:
    def both(x: Array) -> tuple[Array, Array]:
        u = np.clip((x - mu) / sigma, -40.0, 40.0)
        density = np.exp(-0.5 * u * u) / np.sqrt(2 * np.pi)
        return _tailed(x, _bounded(x) * ndtr(u)), ndtr(u) + (u + mu / sigma) * density

    return both


def gelu_tanh(x: Array) -> tuple[Array, Array]:
    c, k = np.clip(x, -40.0, 40.0), np.sqrt(8 / np.pi)
    inner = k * (c + 0.044715 * c**3)
    return _tailed(x, _bounded(x) * expit(inner)), expit(inner) + c * k * (1 + 0.134145 * c * c) * expit(inner) * expit(
        -inner
    )


def swish(beta: float) -> Callable[[Array], tuple[Array, Array]]:
    def both(x: Array) -> tuple[Array, Array]:
        c = np.clip(beta * x, -_FAR, _FAR)
        return _tailed(x, _bounded(x) * expit(c)), expit(c) + c * expit(c) * expit(-c)

    return both


def mish(x: Array) -> tuple[Array, Array]:
    c = np.clip(x, -_FAR, 40.0)
    e = np.exp(c)
    n = e * (e + 2)
    slope = n / (n + 2) + c * 4 * e * (1 + e) / (n + 2) ** 2
    return _tailed(x, np.where(x > 40, x, c * n / (n + 2))), np.where(x > 40, 1.0, slope)


def elu(alpha: float) -> Callable[[Array], tuple[Array, Array]]:
    def both(x: Array) -> tuple[Array, Array]:
        left = np.minimum(x, 0.0)
        return np.where(x > 0, x, alpha * np.expm1(left)), np.where(x > 0, 1.0, alpha * np.exp(left))

    return both


def hard_swish(x: Array) -> tuple[Array, Array]:
    c = np.clip(x, -3.0, None)
    inside = (x > -3) & (x < 3)
    return c * np.minimum(c + 3, 6) / 6, np.where(inside, x / 3 + 0.5, (x >= 3).astype(float))
