"""The activations' definitions in mpmath, the points at which they are tried, and the bound that the results must keep.

One tester for all of them: see ``worst_ratios``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import mpmath
import torch
from taylor import DIGITS, Taylor, exp, expm1, log1p, normal_cdf, sigmoid, tanh
from torch import Tensor

from lit_gelu import activations
from lit_gelu.activations import functional

Definition = Callable[..., Taylor]

SELU_ALPHA = "1.67326324235437728481704299167"
SELU_SCALE = "1.05070098735548049341933498529"


@dataclass(frozen=True)
class ActivationCase:
    """One activation with given parameters.

    Args:
        name: Of the function in ``lit_gelu.activations.functional``.
        definition: The function of a Taylor series, written from its definition; at a kink the documented side.
        parameters: Keyword arguments of the function and of the definition.
        points: Kinks, zeros, extrema and inflections: tried with their neighbours.
        tail: Where the function leaves the range of normal numbers, in float64.
        conditioned_on: Parameters whose last digit may move too: rounding ``x - mu`` moves ``mu``, too.
        spacings: How many spacings of the subnormal numbers a subnormal result may be off.
        limits: The values of f, f' and f'' at ``-inf`` and ``inf``; by default those of a gate that opens on the right.
    """

    name: str
    definition: Definition
    parameters: Mapping[str, float | str] = field(default_factory=dict)
    points: tuple[float, ...] = ()
    tail: tuple[float, float] = (-745.2, -30.0)
    conditioned_on: tuple[str, ...] = ()
    spacings: float = 1.0
    limits: tuple[tuple[float, float], ...] = ((0.0, math.inf), (0.0, 1.0), (0.0, 0.0))

    def __str__(self) -> str:
        return "-".join([self.name, *(str(value) for value in self.parameters.values())])

    def compute(self, x: Tensor, order: int) -> Tensor:
        if order == 0:
            return getattr(functional, self.name)(x, **self.parameters)
        derivative: Callable[..., Tensor] = activations.registry.entry(self.name).derivative
        return derivative(x, order, **self.parameters)

    def exact(self, x: float) -> list[mpmath.mpf]:
        """Return f, f', f'' and f''' at ``x``."""
        # Near 0 a derivative that is odd in x is a difference of numbers near one half.
        cancelling = -2 * math.log10(abs(x)) if 0 < abs(x) < 1 else 0
        with mpmath.workdps(DIGITS + int(cancelling)):
            return self.definition(Taylor.variable(x), **self.parameters).derivatives()

    def scales(self, x: float, exact: list[mpmath.mpf]) -> list[mpmath.mpf]:
        """Return ``|g| + |x g'|`` for g = f, f', f'', plus ``|p dg/dp|`` for the parameters conditioned on."""
        scales = [abs(exact[k]) + abs(x * exact[k + 1]) for k in range(3)]
        for parameter in self.conditioned_on:
            value = mpmath.mpf(self.parameters[parameter])
            step = value * mpmath.mpf(10) ** -20
            moved = self.definition(Taylor.variable(x), **{**self.parameters, parameter: value + step}).derivatives()
            scales = [scale + abs(value * (m - e) / step) for scale, m, e in zip(scales, moved, exact, strict=False)]
        return scales


def _gelu(t: Taylor, approximate: str = "none") -> Taylor:
    if approximate == "none":
        return t * normal_cdf(t)
    if approximate == "sigmoid":
        return t * sigmoid(mpmath.mpf("1.702") * t)
    w = mpmath.sqrt(2 / mpmath.pi) * (t + mpmath.mpf("0.044715") * t * t * t)
    return t * sigmoid(2 * w)


def _gaussian_gelu(t: Taylor, mu: float, sigma: float) -> Taylor:
    return t * normal_cdf((t - mu) / sigma)


def _swish(t: Taylor, beta: float = 1.0) -> Taylor:
    return t * sigmoid(beta * t)


def _cauchy(t: Taylor) -> Taylor:
    # F + x F' and its derivatives cancel down to |x|**-3 of their terms, and more.
    with mpmath.workdps(mpmath.mp.dps + 3 * int(mpmath.log10(1 + abs(t.value)))):
        density = 1 / (mpmath.pi * (1 + t * t))
        return t * density.integrate(t, mpmath.atan2(1, -t.value) / mpmath.pi)


def _laplace(t: Taylor) -> Taylor:
    return t * (exp(t) / 2 if t.value < 0 else 1 - exp(-t) / 2)


def _cdf_linear(t: Taylor, distribution: str) -> Taylor:
    gates = {"normal": _gelu, "logistic": _swish, "cauchy": _cauchy, "laplace": _laplace}
    return gates[distribution](t)


def _elu(t: Taylor, alpha: float = 1.0) -> Taylor:
    return t if t.value > 0 else alpha * expm1(t)


def _celu(t: Taylor, alpha: float = 1.0) -> Taylor:
    return t if t.value > 0 else alpha * expm1(t / alpha)


def _selu(t: Taylor) -> Taylor:
    return mpmath.mpf(SELU_SCALE) * _elu(t, mpmath.mpf(SELU_ALPHA))


def _leaky_relu(t: Taylor, negative_slope: float = 0.01) -> Taylor:
    return t if t.value > 0 else negative_slope * t


def _gate6(t: Taylor) -> Taylor:
    if t.value >= 3:
        return Taylor.constant(1)
    return Taylor.constant(0) if t.value <= -3 else (t + 3) / 6


def _softplus(t: Taylor, beta: float = 1.0) -> Taylor:
    return (t if t.value > 0 else Taylor.constant(0)) + log1p(exp(-beta * t if t.value > 0 else beta * t)) / beta


def _clipped_gelu(t: Taylor, **bounds: float) -> Taylor:
    value, lower, upper = _gelu(t), bounds["min"], bounds["max"]
    return value if lower <= value.value <= upper else Taylor.constant(lower if value.value < lower else upper)


def _hard_mish(t: Taylor) -> Taylor:
    if t.value >= 0:
        return t
    return Taylor.constant(0) if t.value <= -2 else t * (t + 2) / 2


def _mega_laplace(t: Taylor, mu: float = 0.707107, sigma: float = 0.282095) -> Taylor:
    return normal_cdf((t - mu) / sigma)


def _sqrt_softplus(t: Taylor) -> Taylor:
    value = _softplus(t)
    root = [mpmath.sqrt(value.value)]
    for k in range(1, len(value.c)):
        root.append((value.c[k] - sum(root[j] * root[k - j] for j in range(1, k))) / (2 * root[0]))
    return Taylor(root)


def _xielu(t: Taylor, alpha_p: float = 0.8, alpha_n: float = 0.8, beta: float = 0.5) -> Taylor:
    return alpha_p * t * t + beta * t if t.value > 0 else alpha_n * (expm1(t) - t) + beta * t


ZERO = Taylor.constant(0)
INF = math.inf


def _leaky_limits(slope: float) -> tuple[tuple[float, float], ...]:
    return ((-math.copysign(INF, slope), INF), (slope, 1.0), (0.0, 0.0))


def _elu_limits(alpha: float, scale: float = 1.0) -> tuple[tuple[float, float], ...]:
    return ((-alpha * scale, INF), (0.0, scale), (0.0, 0.0))


BOUNDED = ((0.0, 1.0), (0.0, 0.0), (0.0, 0.0))
MIRRORED = ((-INF, 0.0), (1.0, 0.0), (0.0, 0.0))

CASES = (
    ActivationCase("identity", lambda t: t, limits=_leaky_limits(1.0)),
    ActivationCase("relu", lambda t: t if t.value > 0 else ZERO),
    ActivationCase(
        "relu6",
        lambda t: t if 0 < t.value < 6 else Taylor.constant(6 if t.value > 3 else 0),
        points=(6.0,),
        limits=((0.0, 6.0), (0.0, 0.0), (0.0, 0.0)),
    ),
    ActivationCase("relu2", lambda t: t * t if t.value > 0 else ZERO, limits=((0.0, INF), (0.0, INF), (0.0, 2.0))),
    ActivationCase("leaky_relu", _leaky_relu, limits=_leaky_limits(0.01)),
    ActivationCase("leaky_relu", _leaky_relu, {"negative_slope": 0.3}, limits=_leaky_limits(0.3)),
    ActivationCase("leaky_relu", _leaky_relu, {"negative_slope": 0.0}),
    ActivationCase("prelu", lambda t, weight: _leaky_relu(t, weight), {"weight": -0.7}, limits=_leaky_limits(-0.7)),
    ActivationCase("elu", _elu, limits=_elu_limits(1.0)),
    ActivationCase("elu", _elu, {"alpha": 0.3}, limits=_elu_limits(0.3)),
    ActivationCase("selu", _selu, limits=_elu_limits(float(SELU_ALPHA), float(SELU_SCALE))),
    ActivationCase("celu", _celu, limits=_elu_limits(1.0)),
    # x / alpha is rounded to a subnormal number and then multiplied by alpha: (alpha + 1) / 2 spacings.
    ActivationCase("celu", _celu, {"alpha": 2.7}, tail=(-2012.0, -30.0), spacings=1.85, limits=_elu_limits(2.7)),
    ActivationCase(
        "gelu", _gelu, points=(-0.7517915246935645, math.sqrt(2), -math.sqrt(2), -12.0, -30.0), tail=(-38.6, -30.0)
    ),
    ActivationCase(
        "gelu",
        _gelu,
        {"approximate": "tanh"},
        points=(-0.7524614220710163, 1.418504008790828, -1.418504008790828),
        tail=(-22.0, -18.0),
    ),
    ActivationCase(
        "gelu",
        _gelu,
        {"approximate": "sigmoid"},
        points=(-0.7511542554, 1.409728132, -1.409728132),
        tail=(-438.0, -30.0),
    ),
    ActivationCase("gaussian_gelu", _gaussian_gelu, {"mu": 0.0, "sigma": 1.0}, tail=(-38.6, -30.0)),
    ActivationCase("gaussian_gelu", _gaussian_gelu, {"mu": 0.0, "sigma": 2.0**-10}, tail=(-0.0377, -0.0293)),
    ActivationCase("gaussian_gelu", _gaussian_gelu, {"mu": 0.6, "sigma": 2.5}, (0.6,), (-96.0, -75.0), ("mu",)),
    ActivationCase("gaussian_gelu", _gaussian_gelu, {"mu": -1.7, "sigma": 0.3}, (-1.7,), (-13.3, -10.0), ("mu",)),
    ActivationCase("silu", _swish, points=(-1.278464542761074, 2.399357280515468, -2.399357280515468)),
    ActivationCase("swish", _swish, {"beta": 1.7}, tail=(-439.0, -30.0)),
    ActivationCase("swish", _swish, {"beta": -0.4}, tail=(75.0, 1863.0), limits=MIRRORED),
    ActivationCase("cdf_linear", _cdf_linear, {"distribution": "normal"}, tail=(-38.6, -30.0)),
    ActivationCase("cdf_linear", _cdf_linear, {"distribution": "logistic"}),
    ActivationCase(
        "cdf_linear",
        _cdf_linear,
        {"distribution": "cauchy"},
        points=(-2.0, -1e18),
        tail=(-1e4, -2.0),
        limits=((-1 / math.pi, INF), (0.0, 1.0), (0.0, 0.0)),
    ),
    ActivationCase("cdf_linear", _cdf_linear, {"distribution": "laplace"}, points=(-1.0, 2.0, -2.0, -3.0, 3.0)),
    ActivationCase("hard_swish", lambda t: t * _gate6(t), points=(-3.0, 3.0, -1.5)),
    ActivationCase(
        "mish",
        lambda t: t * tanh(log1p(exp(t))),
        points=(-1.1924312145155, -2.25637639636, 1.49057117949, 372.0, 365.0),
    ),
    ActivationCase("sigmoid", sigmoid, limits=BOUNDED),
    ActivationCase("tanh", tanh, tail=(-373.0, 373.0), limits=((-1.0, 1.0), (0.0, 0.0), (0.0, 0.0))),
    ActivationCase("hard_sigmoid", _gate6, points=(-3.0, 3.0), limits=BOUNDED),
    ActivationCase("softplus", _softplus, points=(-40.0,)),
    ActivationCase("softplus", _softplus, {"beta": 2.3}, tail=(-325.0, -17.0)),
    ActivationCase("log_sigmoid", lambda t: -_softplus(-t), tail=(30.0, 745.2), limits=MIRRORED),
    ActivationCase("hard_mish", _hard_mish, points=(-2.0, -1.0)),
    ActivationCase(
        "clipped_gelu",
        _clipped_gelu,
        {"min": -0.125, "max": 6.0},
        points=(-0.75, 6.0),
        limits=((0.0, 6.0), (0.0, 0.0), (0.0, 0.0)),
    ),
    ActivationCase(
        "mega_laplace",
        _mega_laplace,
        {"mu": 0.707107, "sigma": 0.282095},
        (0.707107, 0.425012, 0.989202),
        (-10.18, -7.75),
        ("mu",),
        limits=BOUNDED,
    ),
    ActivationCase(
        "mega_laplace", _mega_laplace, {"mu": 5.0, "sigma": 0.3}, (5.0, 4.7, 5.3), (-6.6, -4.0), ("mu",), limits=BOUNDED
    ),
    ActivationCase(
        "sqrt_softplus",
        _sqrt_softplus,
        points=(-40.0,),
        tail=(-1490.4, -30.0),
        limits=((0.0, INF), (0.0, 0.0), (0.0, 0.0)),
    ),
    ActivationCase(
        "xielu",
        _xielu,
        {"alpha_p": 0.8, "alpha_n": 0.8, "beta": 0.5},
        (-0.98, -1.0),
        limits=((INF, INF), (0.5 - 0.8, INF), (0.0, 1.6)),
    ),
    ActivationCase(
        "xielu",
        _xielu,
        {"alpha_p": 0.75, "alpha_n": 10.0, "beta": 2.0**-13},
        (-(2.0**-13) / 10, -1.0),
        limits=((INF, INF), (2.0**-13 - 10.0, INF), (0.0, 1.5)),
    ),
    ActivationCase(
        "xielu",
        _xielu,
        {"alpha_p": 0.75, "alpha_n": 0.5 + 2.0**-13, "beta": 0.5},
        (-8.3, -1.0),
        limits=((INF, INF), (-(2.0**-13), INF), (0.0, 1.5)),
    ),
)


# What the tests of f, f' and f'' run over: gated functions have no derivative of one number.
ELEMENTWISE = tuple(
    entry.name
    for entry in activations.ActivationRegistry().entries()
    if activations.registry.entry(activations.resolve(entry.name).name).facts_for({}).elementwise
)


def cases_of(*names: str) -> tuple[ActivationCase, ...]:
    """Return the cases of the named activations."""
    return tuple(case for case in CASES if case.name in names)


def sample_points(case: ActivationCase, dtype: torch.dtype, count: int, seed: int = 0) -> Tensor:
    """Return points for one case: in [-30, 30], in its tail, of all magnitudes, and about its special points."""
    info, random_numbers = torch.finfo(dtype), random.Random(f"{case} {seed}")
    low, high = case.tail if dtype == torch.float64 else _float32_tail(case.tail)
    smallest, largest = math.log10(info.tiny) - 5, math.log10(info.max)
    values = [random_numbers.uniform(-30, 30) for _ in range(count)]
    values += [random_numbers.uniform(low, high) for _ in range(count)]
    values += [
        random_numbers.choice((-1, 1)) * 10 ** random_numbers.uniform(smallest, largest - 1e-9) for _ in range(count)
    ]
    values += [sign * x for sign in (-1, 1) for x in (1e-8, 1e-300, 1.0, 30.0, 1e3, 1e20, 1e300, info.max, info.tiny)]
    values += [
        random_numbers.choice((*case.points, 0.0))
        + random_numbers.choice((-1, 1)) * 10 ** random_numbers.uniform(-16, 0)
        for _ in range(count)
    ]
    special = torch.tensor([*case.points, 0.0], dtype=torch.float64).to(dtype)
    points = torch.tensor([*values, *special.tolist()], dtype=torch.float64).clamp(info.min, info.max).to(dtype)
    up, down = torch.full_like(special, math.inf), torch.full_like(special, -math.inf)
    return torch.cat([points, torch.nextafter(special, up), torch.nextafter(special, down)]).unique()


def points_about_extrema(case: ActivationCase, count: int, seed: int = 0) -> Tensor:
    """Return points about the local extrema of f, f' and f'', where g' vanishes and the bound is ``|g|`` alone."""
    grid = torch.linspace(-12, 12, 4801, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    points = torch.zeros(0, dtype=torch.float64)
    for order in range(3):
        rise = case.compute(grid, order).diff()
        for extremum in grid[1:-1][rise[1:] * rise[:-1] < 0]:
            offsets = 0.06 * torch.rand(count, dtype=torch.float64, generator=generator) - 0.03
            points = torch.cat([points, extremum + offsets])
    return points


def _float32_tail(tail: tuple[float, float]) -> tuple[float, float]:
    """Scale the ends of a tail from float64's range of exponents to float32's; Gaussian tails are the short ones."""
    short = max(abs(end) for end in tail) < 100
    factor = math.sqrt(103.3 / 744.4) if short else 103.3 / 744.4
    return tail[0] * factor * 1.02, tail[1] * factor


def worst_ratios(
    case: ActivationCase, x: Tensor, epsilons: float, results: list[Tensor] | None = None
) -> list[tuple[float, float]]:
    """Compare f, f', f'' with mpmath and return, for each, the largest error in units of the bound, and where it is.

    The bound is ``epsilons * eps * (|g| + |x g'|)``, g being f, f' or f''; where g is below the smallest normal number,
    a spacing of the subnormal numbers more. A value beyond the dtype's range must be infinite."""
    info = torch.finfo(x.dtype)
    results = results or [case.compute(x, order) for order in range(3)]
    worst = [(0.0, math.nan)] * 3
    with mpmath.workdps(DIGITS):
        for i, point in enumerate(x.tolist()):
            exact = case.exact(point)
            for order, scale in enumerate(case.scales(point, exact)):
                value, expected = results[order][i].item(), exact[order]
                ratio = _ratio(value, expected, epsilons * info.eps * scale, case.spacings, info)
                if not ratio <= worst[order][0]:
                    worst[order] = (ratio, point)
    return worst


def _ratio(value: float, expected: mpmath.mpf, bound: mpmath.mpf, spacings: float, info: torch.finfo) -> float:
    """Return the error of one value in units of its bound."""
    if abs(expected) > info.max:
        return 0.0 if math.isinf(value) and (value > 0) == (expected > 0) else math.inf
    if not math.isfinite(value):
        return math.inf
    if abs(expected) < info.tiny:
        bound += spacings * info.tiny * info.eps
    error = abs(mpmath.mpf(value) - expected)
    return float(error / bound) if error else 0.0
