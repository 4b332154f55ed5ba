"""``x`` times a distribution function, whose cases have names of their own; the logistic one is SiLU."""

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.families.gaussian_gelu import HENDRYCKS_2016
from lit_gelu.activations.families.gelu import EXACT_ONNX, gelu, gelu_derivative
from lit_gelu.activations.families.swish import SILU_ONNX, silu, silu_derivative
from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts
from lit_gelu.activations.naming.spec import ActivationSpec
from lit_gelu.activations.numerics.arguments import elementwise, elementwise_derivative, largest
from lit_gelu.activations.numerics.gates import LOGISTIC_LIMIT, decay
from lit_gelu.activations.onnx_recipes import Arguments, OnnxCases, OnnxRecipes
from lit_gelu.errors import ArgumentError
from lit_gelu.memory import checked_memory, compute, memory_text

FORMULAS = {
    "normal": "x Phi(x)",
    "logistic": "x sigmoid(x)",
    "cauchy": "x (1/2 + atan(x) / pi)",
    "laplace": "x exp(x) / 2 if x < 0 else x - x exp(-x) / 2",
}
INVERSE_PI = 1.0 / math.pi

# Where x is F(x) x to the last digit, and x**2 is far from overflow.
CAUCHY_LIMIT = {torch.float32: 1e18, torch.float64: 1e150}
# Left of it F(x) + x p(x) is summed as a series of positive terms; there 1 / (1 + x**2) <= 1/5, and the number of terms
# makes the first one left out smaller than a rounding error.
CAUCHY_TAIL = -2.0
CAUCHY_TERMS = {torch.float32: 10, torch.float64: 23}


@elementwise
def cdf_linear(x: Tensor, distribution: Any = "normal") -> Tensor:
    """Return ``x`` times the probability that a random variable is at most ``x``: ``f(x) = x F(x)``.

    * ``"normal"``: exact GELU;
    * ``"logistic"``: ``F = 1 / (1 + exp(-x))``, SiLU;
    * ``"cauchy"``: ``F = 1/2 + atan(x) / pi``, computed as ``atan2(1, -x) / pi``, which keeps the relative accuracy of
      the left tail. It is convex and increasing, with ``f(-inf) = -1 / pi`` and ``x - 1 / pi`` as the right asymptote;
    * ``"laplace"``: ``F = exp(x) / 2`` left of 0 and ``1 - exp(-x) / 2`` right of it;
    * any object with ``cdf(x)``, from tensor to tensor, such as ``torch.distributions.Normal(0.0, 2.0)``, whose
      accuracy and range are those of its ``cdf``.

    Source: Hendrycks and Gimpel 2016 (arXiv 1606.08415), section 5, which names the Cauchy and the Laplace case.

    Args:
        x: Any shape, floating.
        distribution: One of the four names, or an object.

    Raises:
        ArgumentError: If ``x`` is not a floating tensor, or ``distribution`` neither a name nor an object whose ``cdf``
            gives a tensor.

    Example:
        >>> x = torch.tensor([-1e6, -1.0, 0.0, 1.0])
        >>> cdf_linear(x, "cauchy")
        tensor([-0.3183, -0.2500,  0.0000,  0.7500])
        >>> cdf_linear(x, torch.distributions.Laplace(0.0, 1.0)), cdf_linear(x, "laplace")
        (tensor([-0.0000, -0.1839,  0.0000,  0.8161]), tensor([-0.0000, -0.1839,  0.0000,  0.8161]))
    """
    match distribution:
        case "normal":
            return gelu(x)
        case "logistic":
            return silu(x)
        case "cauchy":
            limit = CAUCHY_LIMIT[x.dtype]
            bounded = x.clamp(-limit, limit)
            return torch.where(x >= limit, x, bounded * _cauchy_cdf(bounded))  # the end of a clamp has derivative 0
        case "laplace":
            bounded = x.clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT)
            tail = _laplace_tail(bounded, bounded)
            return torch.where(x >= LOGISTIC_LIMIT, x, torch.where(bounded < 0, tail, bounded - tail))
    check_distribution(distribution)
    # At -inf the limit depends on the tail; x F(x) at the lowest finite number has it, and no inf * 0.
    bounded = x.clamp(min=-largest(x))
    probability = distribution.cdf(bounded)
    if not isinstance(probability, Tensor) or probability.shape != x.shape:
        raise ArgumentError(
            f"cdf_linear: {type(distribution).__name__}.cdf made no tensor of shape {tuple(x.shape)} of one. It must "
            "be elementwise: give a distribution of one number that computes with torch, not a batch of them."
        )
    return bounded * probability


@elementwise_derivative
def cdf_linear_derivative(x: Tensor, order: int = 1, distribution: Any = "normal") -> Tensor:
    """First or second derivative of `cdf_linear`: ``f' = F + x p`` and ``f'' = 2 p + x p'`` with the density ``p``."""
    match distribution:
        case "normal":
            return gelu_derivative(x, order)
        case "logistic":
            return silu_derivative(x, order)
        case "cauchy":
            limit = CAUCHY_LIMIT[x.dtype]
            return _cauchy_derivative(x.clamp(-limit, limit), order)
        case "laplace":
            x = x.clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT)
            size = torch.where(x < 0, -x, x)  # torch.abs has the derivative 0 at 0
            if order == 2:
                return _laplace_tail(2.0 - size, x)
            tail = _laplace_tail(1.0 - size, x)
            return torch.where(x < 0, tail, 1.0 - tail)
    once = torch.func.grad(lambda x: cdf_linear(x, distribution).sum())
    slope: Tensor = once(x) if order == 1 else torch.func.grad(lambda x: once(x).sum())(x)
    return slope


def check_distribution(distribution: Any) -> None:
    """Refuse what is neither one of the four names nor an object with a ``cdf``."""
    named = isinstance(distribution, str) and distribution in FORMULAS
    if not named and (isinstance(distribution, type) or not callable(getattr(distribution, "cdf", None))):
        raise ArgumentError(
            f"cdf_linear: distribution={distribution!r} is not accepted. Use one of {', '.join(map(repr, FORMULAS))}, "
            "or an object with a method cdf(x) from tensor to tensor, such as torch.distributions.Normal(0.0, 2.0)."
        )


def _cauchy_cdf(x: Tensor) -> Tensor:
    """Return ``F(x)`` of the Cauchy distribution with full relative accuracy on both sides, for bounded ``x``."""
    # 0 - x and not -x: the atan2 that torch's exporter writes takes -0 for a number left of 0.
    return torch.atan2(torch.ones_like(x), 0.0 - x) * INVERSE_PI


def _cauchy_derivative(x: Tensor, order: int) -> Tensor:
    """Return ``f'`` or ``f''`` of the Cauchy case for bounded ``x``."""
    # In the left tail ``F + x p = (|x| q / pi) (2/3 q + 8/15 q**2 + 16/35 q**3 ...)`` with ``q = 1 / (1 + x**2)``, from
    # Euler's series of the arctangent (Abramowitz and Stegun 1964, equation 4.4.42), whose first term ``x p`` cancels.
    if order == 2:
        q = 1.0 / (1.0 + x * x)
        return (2.0 * INVERSE_PI * q) * q
    in_tail = x < CAUCHY_TAIL  # selected, not clamped: forward mode is 0 at the end of a clamp
    tail = torch.where(in_tail, x, CAUCHY_TAIL)
    q = 1.0 / (1.0 + tail * tail)
    series = torch.ones_like(x)
    for n in range(CAUCHY_TERMS[x.dtype], 1, -1):
        series = 1.0 + (2.0 * n / (2.0 * n + 1.0)) * q * series
    left = (-tail * q) * ((2.0 / 3.0 * INVERSE_PI) * q * series)
    inner = torch.where(in_tail, CAUCHY_TAIL, x)
    return torch.where(in_tail, left, _cauchy_cdf(inner) + inner / (1.0 + inner * inner) * INVERSE_PI)


def _laplace_tail(factor: Tensor, x: Tensor) -> Tensor:
    """Return ``factor exp(-|x|) / 2``; see ``numerics/gates.py`` for why the exponential is halved."""
    _, inner, outer = decay(x)
    return (0.5 * factor * inner) * outer


class CDFLinear(nn.Module):
    """``f(x) = x F(x)`` with a distribution function ``F``, elementwise, any shape and floating dtype.

    The normal and the logistic case call torch's GELU and SiLU. An object may be a ``torch.nn.Module`` with
    learned parameters; tensors of anything else stay on their device and in their dtype. To give an object's function a
    name that a checkpoint can hold, register one::

        @lit_gelu.activations.register("gumbel_linear")
        def gumbel_linear(x):
            return lit_gelu.activations.functional.cdf_linear(x, torch.distributions.Gumbel(0.0, 1.0))

    Bytes kept for the backward pass, for each float32 element: 4 in the normal and the logistic case,
    21 in the Cauchy and 32 in the Laplace case, in 16 bit too, because they are computed in float32; 4 with
    ``memory="recompute"``, 2 in 16 bit.

    Args:
        distribution: ``"normal"``, ``"logistic"``, ``"cauchy"`` or ``"laplace"``, or an object with ``cdf(x)``.
        memory: ``"recompute"`` keeps ``x`` alone for the backward pass; ``"autograd"`` what torch's functions need.

    Raises:
        ArgumentError: If ``distribution`` is neither, ``memory`` no mode, or ``"recompute"`` with an object.

    Example:
        >>> CDFLinear("cauchy")(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.2500,  0.0000,  0.7500])
        >>> CDFLinear(torch.distributions.Normal(0.0, 2.0))(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.3085,  0.0000,  0.6915])
    """

    def __init__(self, distribution: Any = "normal", memory: str = "autograd") -> None:
        super().__init__()
        check_distribution(distribution)
        self.distribution = distribution
        self.memory = checked_memory(memory)
        if memory == "recompute" and not isinstance(distribution, str):
            raise ArgumentError(
                "memory='recompute' is not accepted with a distribution that is an object: tensors in it would get no "
                "gradients. Leave memory out, or use torch.utils.checkpoint."
            )

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function to a floating tensor of any shape, elementwise."""
        match self.distribution:
            case "normal":
                return F.gelu(x)
            case "logistic":
                return F.silu(x)
        return compute(self.memory, functools.partial(cdf_linear, distribution=self.distribution), x)

    def extra_repr(self) -> str:
        """Return ``distribution=...`` for ``repr``."""
        return f"distribution={self.distribution!r}{memory_text(self.memory)}"


def _facts(distribution: Any = "normal", **_: Any) -> ActivationFacts:
    return ActivationFacts(
        FORMULAS.get(distribution, "x F(x)"),
        HENDRYCKS_2016,
        smoothness=2 if distribution == "laplace" else math.inf,
        asymptotes=("-1/pi", "x - 1/pi") if distribution == "cauchy" else ("0", "x"),
    )


def _onnx_case(arguments: Arguments) -> str | None:
    """Return whose distribution function it is; torch's exporter decomposes those of other objects."""
    case = f"cdf_linear(distribution={arguments.get('distribution', 'normal')!r})"
    return case if case in _ONNX.recipes else None


_ONNX = OnnxCases(
    {
        "cdf_linear(distribution='normal')": EXACT_ONNX,
        "cdf_linear(distribution='logistic')": SILU_ONNX,
        # It is atan(-1 / x) left of -1: pi / 2 + atan(x) has no digits left there, and x times it would be wrong in
        # the first.
        "cdf_linear(distribution='cauchy')": OnnxRecipes(
            primitives="l = Min(x, -1.0); Mul(Mul(x, ONE_OVER_PI), "
            "Where(Less(x, -1.0), Neg(Atan(Div(1.0, l))), Add(Atan(x), HALF_PI)))"
        ),
        "cdf_linear(distribution='laplace')": OnnxRecipes(
            primitives="t = Mul(Mul(x, 0.5), Exp(Neg(Abs(x)))); Where(Less(x, 0.0), t, Sub(x, t))"
        ),
    },
    _onnx_case,
)


ENTRIES = (
    ActivationEntry(
        "cdf_linear",
        CDFLinear,
        function=cdf_linear,
        derivative=cdf_linear_derivative,
        facts=_facts,
        objects=("distribution",),
        onnx=_ONNX,
    ),
    ActivationEntry("cauchy_linear", CDFLinear, preset=ActivationSpec.of("cdf_linear", distribution="cauchy")),
    ActivationEntry("laplace_linear", CDFLinear, preset=ActivationSpec.of("cdf_linear", distribution="laplace")),
    ActivationEntry("logistic", nn.SiLU, preset=ActivationSpec("silu")),
)
