"""The functions that a black box may be: rows of a registry, with their parameters fitted to its values."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import least_squares
from torch import Tensor

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.errors import LitGeluError

_FITTED_AT = 400  # inputs
_STARTS = (1.0, 0.25, 2.0)  # times the default, from where a fit begins
_DIGITS = 6  # of a fitted parameter, at most: fewer where they fit as well


@dataclass(frozen=True)
class Formula:
    """A registered activation as a function of float64."""

    spec: str
    registry: ActivationRegistry

    def __call__(self, x: Tensor) -> Tensor:
        """Return its values in float64."""
        module = self.registry.create(self.spec).double().eval()
        with torch.no_grad():
            return module(x.clone())


def formulas(registry: ActivationRegistry) -> Iterator[Formula]:
    """Give every elementwise activation that is not random, with its default arguments, and every form of GELU."""
    specs: dict[str, None] = {}
    for row in registry.entries():
        spec = row.preset or registry.resolve(row.name)
        facts = registry.entry(spec.name).facts_for(spec.arguments)
        if facts.elementwise and not facts.stochastic:
            specs.setdefault(str(spec))
    for text in specs:
        yield Formula(text, registry)


def fitted(formula: Formula, x: Tensor, y: Tensor) -> Formula | None:
    """Return an activation with its scalar parameters fitted to values; ``None`` if it has none, or they do not fit."""
    spec = ActivationSpec.parse(formula.spec)
    defaults = scalar_parameters(spec, formula.registry)
    places = torch.linspace(0, len(x) - 1, _FITTED_AT).long().unique()
    x, y = x[places], y[places]
    keep = y.isfinite()
    x, y = x[keep], y[keep]
    if not defaults or not len(x):
        return None

    def residuals(values: np.ndarray) -> np.ndarray:
        try:
            out = with_parameters(formula, dict(zip(defaults, values.tolist(), strict=True)))(x)
        except LitGeluError:  # outside of what the activation takes
            return np.full(len(x), 1e3)
        return (out - y).nan_to_num(nan=1e3, posinf=1e3, neginf=-1e3).clamp(-1e3, 1e3).numpy()

    best = None
    for factor in _STARTS:
        start = np.array([factor * (value or 1.0) for value in defaults.values()])
        result = least_squares(residuals, start, method="trf", xtol=1e-12, ftol=1e-12, gtol=1e-12, max_nfev=60)
        if best is None or result.cost < best.cost:
            best = result
    if best is None or not np.isfinite(best.x).all():
        return None
    # The shortest numbers that fit as well: somebody wrote 1.702, and not 1.7019999.
    limit = 1.5 * np.abs(best.fun).max() + 1e-12
    for digits in range(1, _DIGITS + 1):
        short = np.array([float(f"{value:.{digits}g}") for value in best.x])
        if np.abs(residuals(short)).max() <= limit:
            return with_parameters(formula, dict(zip(defaults, short.tolist(), strict=True)))
    return with_parameters(formula, dict(zip(defaults, best.x.tolist(), strict=True)))


def scalar_parameters(spec: ActivationSpec, registry: ActivationRegistry) -> dict[str, float]:
    """Return the parameters of an activation that are real numbers, with the values that a spec gives them."""
    parameters = registry.entry(spec.name).parameters
    values = {name: spec.arguments.get(name, parameter.default) for name, parameter in parameters.items()}
    return {name: float(value) for name, value in values.items() if type(value) is float and math.isfinite(value)}


def with_parameters(formula: Formula, parameters: Mapping[str, float]) -> Formula:
    """Return an activation with other parameters."""
    spec = ActivationSpec.parse(formula.spec)
    changed = formula.registry.resolve(ActivationSpec.of(spec.name, **{**spec.arguments, **parameters}))
    return Formula(str(changed), formula.registry)
