"""Statements about Swish and GELU that are repeated in teaching material, beside what the functions do."""

import math

import torch
from _claims import at
from _text import number, table

from lit_gelu import activations
from lit_gelu.activations import functional

SHARE = 2.0**-0.5


def _normal_below(x: float) -> float:
    return 0.5 * math.erfc(-x * SHARE)


def _gate_errors() -> tuple[float, float]:
    """Return the largest errors of ``sigmoid(1.702 x)`` for ``Phi(x)``, and of the two the other way round."""
    x = torch.linspace(-12, 12, 2_400_001, dtype=torch.float64)
    right = (torch.sigmoid(1.702 * x) - 0.5 * torch.erfc(-x * SHARE)).abs().max().item()
    wrong = (torch.sigmoid(x) - 0.5 * torch.erfc(-1.702 * x * SHARE)).abs().max().item()
    return right, wrong


def _minima() -> list[tuple[str, str]]:
    gelu, silu = activations.info("gelu"), activations.info("silu")
    assert gelu.minimum is not None  # noqa: S101 - for the type checker
    assert silu.minimum is not None  # noqa: S101
    (low, value), (silu_low, _) = gelu.minimum, silu.minimum
    falls, silu_falls = _normal_below(low), _normal_below(silu_low)
    return [
        (
            "GELU has its minimum at x = -1.00.",
            f"At x = {number(low)}, where it is {number(value)}; GELU(-1) is {number(at('gelu', -1.0))}.",
        ),
        (
            "Swish falls on [-1.28, 0] and GELU on [-1, 0].",
            f"There they rise. f' < 0 left of the minimum: on (-∞, {number(silu_low, 6)}) and (-∞, {number(low, 6)}).",
        ),
        (
            "GELU's falling part is the narrower one.",
            f"It holds more of a standard normal pre-activation: {100 * falls:.2f} % against {100 * silu_falls:.2f} %.",
        ),
    ]


def _approximations() -> list[tuple[str, str]]:
    tanh = activations.compare("gelu", "gelu_tanh").value.largest
    sigmoid = activations.compare("gelu", "gelu_sigmoid").value
    right, wrong = _gate_errors()
    return [
        (
            "Both approximations of GELU are within 0.01.",
            f"The tanh form is, with {number(tanh, 4)}; x sigmoid(1.702 x) is off by {number(sigmoid.largest, 6)} at "
            f"±{number(sigmoid.places[-1], 5)}.",
        ),
        (
            "sigmoid(x) ≈ Φ(1.702 x).",
            f"The other way round: Φ(x) ≈ sigmoid(1.702 x), error {number(right, 4)}. As stated the error is "
            f"{number(wrong, 5)}.",
        ),
    ]


def _others() -> list[tuple[str, str]]:
    x = torch.tensor([-1.0], dtype=torch.float64)
    swish, slope = functional.silu(x), functional.silu_derivative(x)
    printed = (swish + x * swish * (1.0 - swish / x)).item()
    hard = activations.compare("silu", "hard_swish").value
    hidden, model = 4 * 1024, 1024
    return [
        (
            "Swish' = swish + x swish (1 - swish / x).",
            f"That is x Swish'(x): at -1 it gives {number(printed, 6)}, and Swish'(-1) is {number(slope.item(), 6)}; "
            "at 0 it is 0/0. Swish' = s + swish (1 - s) with s = sigmoid(x).",
        ),
        (
            "Hard Swish is piecewise linear.",
            "Its gate is; the function is quadratic between -3 and 3, where f' jumps by "
            f"{number(activations.info('hard_swish').kinks[0][1])}. It is up to {number(hard.largest, 6)} from Swish.",
        ),
        (
            "SwiGLU doubles the parameters of a feed-forward block.",
            f"Three matrices instead of two: {3 * hidden * model / (2 * hidden * model):g} times, at equal width; with "
            "two thirds of the width, as in LLaMA, the same.",
        ),
        (
            "A stable sigmoid is np.where of the two forms.",
            "Both branches are computed: exp overflows with a warning, and a NaN is made and thrown away. Clamp the "
            "argument, or use exp(-|x|) in both.",
        ),
        (
            "Smooth activations let Adam estimate curvature better.",
            "Adam's second moment is the mean of squared gradients; no second derivative is in it.",
        ),
        (
            "GELU drops inputs by their magnitude.",
            f"By their value: Φ(-2) = {number(_normal_below(-2.0), 4)}, Φ(2) = {number(_normal_below(2.0), 4)}.",
        ),
    ]


def tutorial() -> dict[str, str]:
    """Return the table of statements and corrections.

    Returns:
        Texts by their names in the template.
    """
    rows = [*_minima(), *_approximations(), *_others()]
    return {"tutorial_table": table(["said", "holds"], rows)}
