"""The functions that a black box may be: rows of a registry, with their parameters fitted to its values."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import least_squares
from torch import Tensor

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.naming.entry import ActivationFacts
from lit_gelu.audit.number_format import distinct
from lit_gelu.errors import LitGeluError

_FITTED_AT = 400  # inputs
_STARTS = (1.0, 0.25, 2.0)  # times the default, from where a fit begins
_DIGITS = 6  # of a fitted parameter, at most: fewer where they fit as well
_FAR = 1e3  # the residual where an activation does not take a parameter, or is not finite


@dataclass(frozen=True)
class Formula:
    """A registered activation as a function of float64."""

    spec: ActivationSpec
    registry: ActivationRegistry

    def __call__(self, x: Tensor) -> Tensor:
        """Return its values in float64."""
        module = self.registry.create(self.spec).double().eval()
        with torch.no_grad():
            output: Tensor = module(x.clone())
        return output

    def __str__(self) -> str:
        return str(self.spec)

    @property
    def facts(self) -> ActivationFacts:
        """What its row says of it."""
        return self.registry.entry(self.spec.name).facts_for(self.spec.arguments)

    @property
    def parameters(self) -> dict[str, float]:
        """Its parameters that are real numbers, with their values."""
        parameters = self.registry.entry(self.spec.name).parameters
        values = {name: self.spec.arguments.get(name, parameter.default) for name, parameter in parameters.items()}
        return {name: float(value) for name, value in values.items() if type(value) is float and math.isfinite(value)}

    def with_parameters(self, parameters: Mapping[str, float]) -> "Formula":
        """Return the activation with other parameters."""
        changed = ActivationSpec.of(self.spec.name, **{**self.spec.arguments, **parameters})
        return Formula(self.registry.resolve(changed), self.registry)


def formulas(registry: ActivationRegistry) -> Iterator[Formula]:
    """Give every elementwise activation that is not random, with its default arguments, the simpler ones first."""
    specs = dict.fromkeys(str(row.preset or registry.resolve(row.name)) for row in registry.entries())
    rows = [Formula(spec, registry) for spec in dict.fromkeys(map(registry.resolve, specs))]
    rows = [row for row in rows if row.facts.elementwise and not row.facts.stochastic]
    yield from sorted(rows, key=lambda row: (row.facts.learnable, len(row.parameters)))


def fitted(formula: Formula, x: Tensor, y: Tensor) -> Formula | None:
    """Return an activation with its scalar parameters fitted to values; ``None`` if it has none, or none fit."""
    names = list(formula.parameters)
    if not names:
        return None
    places = distinct(torch.linspace(0, len(x) - 1, _FITTED_AT).long())
    x, y = x[places], y[places].nan_to_num()

    def residuals(values: np.ndarray) -> np.ndarray:
        try:
            out = formula.with_parameters(dict(zip(names, values.tolist(), strict=True)))(x)
        except (LitGeluError, ArithmeticError, RuntimeError, ValueError):  # outside of what the activation takes
            return np.full(len(x), _FAR)
        array: np.ndarray = (out - y).nan_to_num(nan=_FAR, posinf=_FAR, neginf=-_FAR).clamp(-_FAR, _FAR).numpy()
        return array

    precise = 1e-7 * float(y.abs().max())
    best, worst = None, math.inf
    for factor in _STARTS:
        start = np.array([factor * (value or 1.0) for value in formula.parameters.values()])
        if worst <= precise or np.all(residuals(start) == _FAR):
            continue
        result = least_squares(residuals, start, method="trf", xtol=1e-12, ftol=1e-12, gtol=1e-12, max_nfev=40)
        if np.abs(result.fun).max() < worst:
            best, worst = result.x, float(np.abs(result.fun).max())
    if best is None:
        return None
    best = _shortened(best, formula.parameters, lambda trial: np.abs(residuals(trial)).max() <= 1.5 * worst + precise)
    return formula.with_parameters(dict(zip(names, best.tolist(), strict=True)))


def _shortened(best: np.ndarray, defaults: Mapping[str, float], fits: Callable[[np.ndarray], bool]) -> np.ndarray:
    """Return the shortest parameters that fit as well: somebody wrote 1.702, and not 1.7019999."""
    for i, default in enumerate(defaults.values()):
        for short in (default, *(float(f"{best[i]:.{digits}g}") for digits in range(1, _DIGITS + 1))):
            trial = np.array([*best[:i], short, *best[i + 1 :]])
            if fits(trial):
                best = trial
                break
    return best
