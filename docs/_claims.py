"""What the GELU paper says of its functions, and what holds."""

import functools
import math

import torch
from _text import number, several, table

from lit_gelu import activations
from lit_gelu.activations import functional

INVERSE_PI = 1.0 / math.pi
MONTE_CARLO_POINTS = (-3.0, -2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0)
DRAWS = 1 << 20
SIGMAS = (1.0, 0.5, 0.2, 0.1, 0.01, 0.001)


def at(spec: str, x: float, order: int = 0) -> float:
    """Return f, f' or f'' of an activation at one point, in float64."""
    return functional.derivative(spec, torch.tensor([x], dtype=torch.float64), order).item()


@functools.cache
def monte_carlo() -> tuple[tuple[float, float, float, float], ...]:
    """Return ``(x, mean of the 0-I map, its standard error, x Phi(x))`` from the module in training mode."""
    module = activations.create("zero_identity_map").train()
    rows = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for x in MONTE_CARLO_POINTS:
            drawn = module(torch.full((DRAWS,), x)).double()
            error = drawn.std().item() / math.sqrt(DRAWS)
            rows.append((x, drawn.mean().item(), error, at("gelu", x)))
    return tuple(rows)


@functools.cache
def sigma_distances() -> tuple[tuple[float, float, tuple[float, ...]], ...]:
    """Return ``(sigma, sup |GELU(0, sigma) - ReLU|, where)``."""
    found = [activations.compare(f"gaussian_gelu(sigma={s})", "relu", (-12, 12)).value for s in SIGMAS]
    return tuple((s, d.largest, d.places) for s, d in zip(SIGMAS, found, strict=True))


def _approximations() -> str:
    rows = []
    for name in ("gelu_tanh", "gelu_sigmoid"):
        found = activations.compare("gelu", name)
        cells = [f"{number(d.largest, 7)} at {several(d.places, 7)}" for d in _orders(found)]
        rows.append([f"`{found.b}`", *cells])
    return table(["approximation", "largest error of f", "of f'", "of f''"], rows)


def _orders(found: activations.ActivationComparison) -> tuple[activations.LargestDifference, ...]:
    return found.value, found.slope, found.curvature


def claims() -> dict[str, str]:
    """Return the numbers of the section on the paper.

    Returns:
        Texts by their names in the template.
    """
    elu = f"elu(alpha={INVERSE_PI!r})"
    left = activations.compare(elu, "cauchy_linear", (-100, 0)).value
    right = activations.compare(elu, "cauchy_linear", (0, 1000)).value
    gelu = activations.info("gelu")
    return {
        "gelu_inflections": several(gelu.inflections, 13),
        "gelu_bend_at_zero": number(at("gelu", 0.0, 2)),
        "gelu_bend_at_two": number(at("gelu", 2.0, 2)),
        "gelu_bend_at_six": f"{at('gelu', 6.0, 2):.1e}",
        "monte_carlo_draws": f"{DRAWS:,}",
        "monte_carlo_worst": f"{max(abs(mean - exact) / error for _, mean, error, exact in monte_carlo()):.2f}",
        "cauchy_left": f"{number(left.largest, 6)} at {several(left.places, 6)}",
        "cauchy_right": number(right.largest, 6),
        "cauchy_jump": number(1.0 - INVERSE_PI, 6),
        "approximation_table": _approximations(),
    }
