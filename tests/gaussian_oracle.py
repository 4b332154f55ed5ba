"""Moments of activations over a normal distribution, from their definitions in mpmath."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import mpmath
from activation_oracles import CASES, ActivationCase, cases_of

from lit_gelu.activations import registry

DIGITS = 30
FIELDS = ("value", "value_squared", "variance", "derivative", "derivative_squared", "abs_second_derivative")


@functools.cache
def _rule() -> list[tuple[mpmath.mpf, mpmath.mpf]]:
    """mpmath's Gauss-Legendre rule with 24 nodes on [-1, 1]."""
    with mpmath.workdps(DIGITS):
        return mpmath.calculus.quadrature.GaussLegendre(mpmath.mp).calc_nodes(4, mpmath.mp.prec)


def exact_moments(case: ActivationCase, mean: float, std: float, breaks: Iterable[float] = ()) -> dict[str, mpmath.mpf]:
    """Return E f, E f^2, the variance, E f', E f'^2 and the smooth part of E|f''| for x ~ N(mean, std^2).

    A 24-point rule on panels no wider than 1 about the origin and than the standard deviation everywhere, out to 14 of
    these, with narrower ones about kinks of steep functions (``breaks``).
    """
    with mpmath.workdps(DIGITS):
        rows = [
            (weight, *case.exact(x)[:3])
            for a, b in pairwise(_edges(case, mean, std, breaks))
            for x, weight in _nodes(a, b, mean, std)
        ]
        value = mpmath.fsum(w * f for w, f, _, _ in rows)
        return {
            "value": value,
            "value_squared": mpmath.fsum(w * f**2 for w, f, _, _ in rows),
            "variance": mpmath.fsum(w * (f - value) ** 2 for w, f, _, _ in rows),
            "derivative": mpmath.fsum(w * slope for w, _, slope, _ in rows),
            "derivative_squared": mpmath.fsum(w * slope**2 for w, _, slope, _ in rows),
            "abs_second_derivative": mpmath.fsum(w * abs(bend) for w, _, _, bend in rows),
        }


def _edges(case: ActivationCase, mean: float, std: float, breaks: Iterable[float]) -> list[float]:
    low, high = mean - 14 * std, mean + 14 * std
    steps = [mean + k * std for k in range(-14, 15)]
    inside = {x for x in (*steps, *range(-12, 13), *case.points, *breaks) if low < x < high}
    return sorted({low, high} | inside)


def _nodes(a: float, b: float, mean: float, std: float) -> list[tuple[mpmath.mpf, mpmath.mpf]]:
    half, middle = (mpmath.mpf(b) - a) / 2, (mpmath.mpf(b) + a) / 2
    places = ((middle + half * node, weight) for node, weight in _rule())
    return [(x, weight * half * mpmath.npdf(x, mean, std)) for x, weight in places]


def case_of(spec: str) -> ActivationCase:
    """Return the definition of an activation by its spec."""
    activation = registry.resolve(spec)
    if activation.name in _STAND_INS:
        return _STAND_INS[activation.name](activation.arguments)
    cases = [case for case in CASES if case.name == activation.name and _same(case, activation)]
    if cases:
        return cases[0]
    return replace(cases_of(activation.name)[0], parameters=activation.arguments, points=())


def _same(case: ActivationCase, activation: object) -> bool:
    return registry.resolve(case.name, **case.parameters) == activation


_STAND_INS = {
    "swish": lambda arguments: replace(cases_of("silu")[0], parameters={"beta": 1.0, **arguments}),
    "zero_identity_map": lambda _: case_of("gelu"),
    "prelu": lambda arguments: case_of(f"leaky_relu(negative_slope={arguments.get('init', 0.25)})"),
    "clipped_gelu": lambda arguments: replace(
        cases_of("clipped_gelu")[0], parameters={"min": -10.0, "max": 10.0, **arguments}, points=(-10.0, 10.0)
    ),
}


def is_close(value: float, exact: mpmath.mpf, relative: float, absolute: float = 0.0) -> bool:
    """Whether a float64 result is within the tolerances of an exact one."""
    return math.isfinite(value) and abs(value - exact) <= relative * abs(exact) + absolute
