"""Entropy of an activation's rounded output, beside that of its rounded input."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lit_gelu.activations.analysis.scalar import ScalarActivation, checked_interval
from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.naming.names import Names

_MOST_INPUTS = 20_000_000
_NORMAL_REACH = 8.0  # standard deviations; 1e-15 of the mass of a normal distribution lies beyond


@dataclass(frozen=True)
class QuantisedEntropy:
    """Entropy of an activation's input and output, both rounded.

    Args:
        input_bits: Entropy of the rounded input.
        output_bits: Entropy of the rounded output; no larger.
        distinct_inputs: How many different inputs there are.
        distinct_outputs: How many different outputs.
    """

    input_bits: float
    output_bits: float
    distinct_inputs: int
    distinct_outputs: int

    @property
    def lost_bits(self) -> float:
        """What cannot be told of the input from the output: the conditional entropy."""
        return self.input_bits - self.output_bits


def quantised_entropy(
    spec: Any,
    step: float,
    interval: tuple[float, float] | None = None,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    input_step: float | None = None,
    registry: Names | None = None,
) -> QuantisedEntropy:
    """Compute how many bits of a rounded input are left in the rounded output of an activation.

    The input takes the values ``k * input_step`` with the probabilities of a normal variable rounded to them, or, given
    an interval, the values ``low + k * input_step`` in it with equal probabilities; the output is rounded to multiples
    of ``step``. As the output is a function of the input, the difference of the two entropies is what is lost, by
    collisions of distant inputs and by slopes below one alike.

    Args:
        spec: Any spec, or a module.
        step: The grid of the output.
        interval: Where the input is uniform; by default it is normal.
        mean: Of the normal input.
        std: Of the normal input.
        input_step: The grid of the input; by default ``step``.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        Both entropies in bits, and how many values each takes.

    Raises:
        ActivationArgumentError: If a step or ``std`` is not positive, the interval empty or infinite, there would be
            more than 20 million inputs, or the activation is not elementwise.

    Example:
        >>> relu, gelu = (quantised_entropy(name, 2**-8) for name in ("relu", "gelu"))
        >>> round(relu.input_bits, 3), round(relu.lost_bits, 3), round(gelu.lost_bits, 3)
        (10.047, 4.531, 2.113)
    """
    input_step = step if input_step is None else input_step
    if not (0 < step < math.inf and 0 < input_step < math.inf and 0 < std < math.inf and math.isfinite(mean)):
        raise ActivationArgumentError(
            f"step={step!r}, input_step={input_step!r}, mean={mean!r}, std={std!r}: steps and std must be positive "
            "numbers, and mean a finite one."
        )
    x, probabilities = _normal(mean, std, input_step) if interval is None else _uniform(interval, input_step)
    y = ScalarActivation.of(spec, registry).functions[0](x)
    if not bool(y.isfinite().all()):
        raise ActivationArgumentError(
            f"The output is not finite at {x[~y.isfinite()][0].item():g}. Choose other inputs."
        )
    _, output = torch.unique(torch.round(y / step) + 0.0, return_inverse=True)
    merged = torch.zeros(int(output.max()) + 1, dtype=torch.float64).index_add_(0, output, probabilities)
    return QuantisedEntropy(_entropy(probabilities), _entropy(merged), len(x), len(merged))


def _entropy(probabilities: Tensor) -> float:
    return float(torch.special.entr(probabilities).sum() / math.log(2)) + 0.0


def _uniform(interval: tuple[float, float], step: float) -> tuple[Tensor, Tensor]:
    """Return equally probable inputs."""
    low, high = checked_interval(interval)
    count = _checked_count((high - low) / step)
    x = low + step * torch.arange(count, dtype=torch.float64)
    return x, torch.full_like(x, 1 / count)


def _normal(mean: float, std: float, step: float) -> tuple[Tensor, Tensor]:
    """Return the multiples of ``step`` and the probabilities that a normal variable is rounded to them."""
    first = math.floor((mean - _NORMAL_REACH * std) / step)
    x = step * (first + torch.arange(_checked_count(2 * _NORMAL_REACH * std / step) + 1, dtype=torch.float64))
    u, half = (x - mean) / std, step / (2 * std)
    # Tails are differences of the smaller of the two probabilities, which keeps their digits.
    lower, upper = torch.where(u > 0, -u - half, u - half), torch.where(u > 0, -u + half, u + half)
    probabilities = torch.special.ndtr(upper) - torch.special.ndtr(lower)
    kept = probabilities > 0
    return x[kept], probabilities[kept] / probabilities.sum()


def _checked_count(steps: float) -> int:
    if steps >= _MOST_INPUTS:
        raise ActivationArgumentError(
            f"That is {steps:.3g} inputs; at most {_MOST_INPUTS:,} are accepted. Choose a larger input_step."
        )
    return math.floor(steps * (1 + 1e-12)) + 1
