"""GELU whose values are kept within bounds; with -10 and 10 under the name it has elsewhere."""

import functools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.families.gelu import gelu, gelu_derivative
from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts
from lit_gelu.activations.naming.spec import ActivationSpec
from lit_gelu.activations.numerics.arguments import elementwise, elementwise_derivative, keep_nan
from lit_gelu.activations.numerics.sampling import bisect
from lit_gelu.activations.onnx_recipes import OnnxRecipes
from lit_gelu.errors import ArgumentError

Bound = float | Tensor


@elementwise
def clipped_gelu(x: Tensor, min: Bound = -10.0, max: Bound = 10.0) -> Tensor:  # noqa: A002 - the source's names
    """Return the exact GELU, clipped: ``f(x) = min(max(x Phi(x), min), max)``.

    Made for quantised inference; with the default bounds it is transformers' ``gelu_10``.

    Source: Wu et al. 2020, "Integer Quantization for Deep Learning Inference" (arXiv 2004.09602).

    Args:
        x: Any shape, floating.
        min: Lower bound; without effect below -0.17, GELU's minimum.
        max: Upper bound.

    Raises:
        ArgumentError: If ``x`` is not a floating tensor or ``min`` not below ``max``.

    Example:
        >>> clipped_gelu(torch.tensor([-1.0, 1.0, 20.0]))
        tensor([-0.1587,  0.8413, 10.0000])
    """
    _check_bounds("clipped_gelu", min, max)
    value = gelu(x)
    return torch.where(value > max, max, torch.where(value < min, min, value))


@elementwise_derivative
def clipped_gelu_derivative(
    x: Tensor,
    order: int = 1,
    min: Bound = -10.0,  # noqa: A002 - the source's names
    max: Bound = 10.0,  # noqa: A002
) -> Tensor:
    """First or second derivative of `clipped_gelu`: GELU's where the value is within the bounds, 0 elsewhere."""
    _check_bounds("clipped_gelu_derivative", min, max)
    value = gelu(x)
    return keep_nan(x, torch.where((value >= min) & (value <= max), gelu_derivative(x, order), 0.0))


def _check_bounds(name: str, lower: Bound, upper: Bound) -> None:
    """Refuse numbers that leave nothing between them; tensors are not looked at, which would wait for the device."""
    if not isinstance(lower, Tensor) and not isinstance(upper, Tensor) and not lower < upper:
        raise ArgumentError(f"{name}: min={lower!r}, max={upper!r} is not accepted. Give min below max.")


class ClippedGELU(nn.Module):
    """``f(x) = min(max(x Phi(x), min), max)``, elementwise, any shape and floating dtype."""

    def __init__(self, min: float = -10.0, max: float = 10.0) -> None:  # noqa: A002 - the source's names
        super().__init__()
        _check_bounds("clipped_gelu", min, max)
        self.min = float(min)
        self.max = float(max)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function elementwise."""
        return F.gelu(x).clamp(self.min, self.max)

    def extra_repr(self) -> str:
        """Return the arguments for ``repr``."""
        return f"min={self.min}, max={self.max}"


_LOWEST_AT, _LOWEST = -0.7517915246935645, -0.16997120747990363  # GELU falls on the left of it and rises on the right


def _crossing(level: float, left: float, right: float) -> tuple[float, float]:
    """Return where GELU passes ``level`` between two places, and its slope there."""
    ends = torch.tensor([[left], [right]], dtype=torch.float64)
    place = bisect(lambda x: gelu(x) - level, *ends)
    return place.item(), gelu_derivative(place).item()


@functools.cache
def _kinks(lower: float, upper: float) -> tuple[tuple[float, float], ...]:
    """Return the places where GELU enters the band between the bounds or leaves it, and the jumps of f' there."""
    places = []
    for level, sign in ((lower, 1.0), (upper, -1.0)):
        if not math.isfinite(level) or level <= _LOWEST:
            continue
        right, slope = _crossing(level, _LOWEST_AT, max(level, 0.0) + 1.0)
        places.append((right, sign * slope))
        if level < 0:
            left, slope = _crossing(level, -40.0, _LOWEST_AT)
            places.append((left, -sign * slope))
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
        function=clipped_gelu,
        derivative=clipped_gelu_derivative,
        facts=_facts,
        onnx=OnnxRecipes(
            native="Clip(Gelu(x, approximate='none'), min, max)",
            primitives="Clip(Mul(Mul(x, 0.5), Add(Erf(Div(x, SQRT_2)), 1.0)), min, max)",
            contrib="Clip(microsoft.Gelu(x), min, max)",
            policy={"* * *": "native"},  # rounds once
            absolute=1e-7,
        ),
    ),
    ActivationEntry("gelu_10", ClippedGELU, preset=ActivationSpec.of("clipped_gelu", min=-10.0, max=10.0)),
)
