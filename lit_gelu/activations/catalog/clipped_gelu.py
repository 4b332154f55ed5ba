"""GELU whose values are kept within bounds; with -10 and 10 under the name it has elsewhere."""

import functools
import math

from lit_gelu.activations import functional
from lit_gelu.activations.catalog._package import REGISTERED_BY
from lit_gelu.activations.entry import ActivationEntry, ModuleForm, ReadAttributes
from lit_gelu.activations.info import ActivationFacts
from lit_gelu.activations.modules.clipped_gelu import ClippedGELU
from lit_gelu.activations.spec import ActivationSpec

_LOWEST_AT = -0.7517915246935645  # where GELU has its minimum; left of it GELU falls, right of it it rises


def _gelu(x: float) -> float:
    return 0.5 * x * math.erfc(-x * math.sqrt(0.5))


def _slope(x: float) -> float:
    density = math.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    return 0.5 * math.erfc(-x * math.sqrt(0.5)) + x * density


def _crossing(level: float, below: float, above: float) -> float:
    """Return where GELU passes ``level``, by bisection between a place below it and a place above it."""
    for _ in range(2000):
        middle = 0.5 * (below + above)
        if middle in (below, above):
            break
        below, above = (middle, above) if _gelu(middle) < level else (below, middle)
    return above


def _kinks(lower: float, upper: float) -> tuple[tuple[float, float], ...]:
    """Return the places where GELU enters the band between the bounds or leaves it, and the jumps of f' there."""
    places = []
    for level, sign in ((lower, 1.0), (upper, -1.0)):
        if not math.isfinite(level) or level <= _gelu(_LOWEST_AT):
            continue
        right = _crossing(level, _LOWEST_AT, max(level, 0.0) + 1.0)
        places.append((right, sign * _slope(right)))
        if level < 0:
            left = _crossing(level, _LOWEST_AT, -40.0)
            places.append((left, -sign * _slope(left)))
    return tuple(sorted(places))


def _facts(min: float = -10.0, max: float = 10.0) -> ActivationFacts:  # noqa: A002 - the source's names
    kinks = _kinks(min, max)
    return ActivationFacts(
        "min(max(x Phi(x), min), max)",
        "Wu et al. 2020, Integer Quantization for Deep Learning Inference (arXiv 2004.09602)",
        smoothness=0 if kinks else float("inf"),
        asymptotes=(f"{sorted((min, 0.0, max))[1]:g}", f"{max:g}"),
        kinks=kinks,
    )


ENTRIES = (
    ActivationEntry(
        "clipped_gelu",
        ClippedGELU,
        function=functional.clipped_gelu,
        derivative=functional.clipped_gelu_derivative,
        facts=_facts,
        modules=(ModuleForm(ClippedGELU, ReadAttributes(("min", "max"))),),
        registered_by=REGISTERED_BY,
    ),
    ActivationEntry(
        "gelu_10",
        functools.partial(ClippedGELU, -10.0, 10.0),  # by position, so that no argument is left to give
        preset=ActivationSpec.of("clipped_gelu", min=-10.0, max=10.0),
        registered_by=REGISTERED_BY,
    ),
)
