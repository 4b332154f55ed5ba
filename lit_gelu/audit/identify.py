"""`identify`: which registered activation a function computes, told from its values at chosen inputs.

Tests that allow 1e-3 cannot tell the forms of GELU apart, whose values differ by 4.7e-4 at most. In a dtype they round
to different numbers at some inputs, and there a black box shows which one it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.audit.black_box import BlackBox, all_inputs, core_inputs, dtype_of, spacing
from lit_gelu.audit.candidates import Formula, fitted, formulas, scalar_parameters
from lit_gelu.audit.deviations import Structure, deviations, structure_of
from lit_gelu.display import Displayed, HtmlTable

_ALLOWED = 64.0  # units in the last place of max(|x|, |f(x)|) that a kernel in float32 or float64 may be off
_ALLOWED_IN_16_BIT = 2.0
_FITS = 0.98  # the share of inputs at which a function must be within that for a candidate to be it throughout
_PARTLY = 0.5  # and to be it but for what the notes name
_TIED = 0.02  # candidates whose shares differ by less are told apart by their rounded values
_AGREES = 0.6  # of the inputs at which tied candidates differ, the function must have the candidate's number at so many
_AHEAD = 0.2  # and more often than the next one by this share
_MOST = 5  # candidates that are listed


@dataclass(frozen=True)
class Candidate:
    """A registered activation, and how far a function is from it where |x| <= 8."""

    spec: str
    share: float  # of the inputs at which the function is within what kernels may be off
    ulp: float  # the largest error in units of the last place of max(|x|, |f(x)|)
    absolute: float  # the largest error
    agreement: float | None = None  # share of correctly rounded values, where tied candidates round apart

    def __str__(self) -> str:
        told = "" if self.agreement is None else f", {self.agreement:.0%} of the telling inputs"
        return f"{self.spec}: fits at {self.share:.1%}, off by {self.absolute:.3g} ({self.ulp:.3g} ulp){told}"


@dataclass(frozen=True, repr=False)
class Identification(Displayed):
    """What `identify` says of a function.

    Args:
        spec: The activation, as the text of its spec; ``None`` if no registered one fits.
        decided: Whether this one alone fits, those that are equal in the dtype apart.
        candidates: The nearest activations, the best one first.
        equal: Specs that round to the same numbers in this dtype as ``spec`` does.
        first_difference: The input nearest to 0 at which the function is not the correctly rounded value of the
            nearest candidate, what it gives there, and that value.
        notes: What else its values show: a table, a coarser dtype, saturation, NaN, subnormals that become 0.
    """

    spec: str | None
    decided: bool
    candidates: tuple[Candidate, ...]
    equal: tuple[str, ...] = ()
    first_difference: tuple[float, float, float] | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.spec is None:
            head = f"none that is registered; the nearest is {self.candidates[0]}"
        else:
            equal = f" (equal to {', '.join(self.equal)} in this dtype)" if self.equal else ""
            head = f"{self.spec}{equal}" if self.decided else f"{self.spec}, or another one: see the candidates"
        return "\n".join([head, *(f"  {note}" for note in self.notes)])

    def _summary(self) -> str:
        return str(self).splitlines()[0]

    def _html_table(self) -> HtmlTable:
        rows = [(row.spec, row.share, row.ulp, row.absolute, row.agreement) for row in self.candidates]
        return HtmlTable(("activation", "fits at", "ulp", "absolute", "agrees"), rows, self._summary(), self.notes)


def identify(
    function: Callable[[Any], Any], dtype: str | torch.dtype = "float32", *, registry: ActivationRegistry | None = None
) -> Identification:
    """Tell which registered activation an elementwise function computes.

    It is called with all finite numbers of a 16-bit dtype, or with some 10,000 of a wider one, and compared with every
    registered activation in float64. Scalar parameters (beta, alpha, sigma, limits) are fitted where no row fits with
    its defaults.

    Args:
        function: From tensor to tensor, or from NumPy array to NumPy array, of any size.
        dtype: Of its inputs: ``"float64"``, ``"float32"``, ``"float16"`` or ``"bfloat16"``.
        registry: Whose activations are tried; by default `lit_gelu.activations.registry`.

    Raises:
        ArgumentError: If the dtype is another one.
        AuditError: If the function cannot be called, changes the shape, is random, or is not elementwise.

    Example:
        >>> import torch.nn.functional as F
        >>> identify(lambda x: F.gelu(x, approximate="tanh"), "bfloat16").spec
        "gelu(approximate='tanh')"
        >>> print(identify(lambda x: x * torch.sigmoid(1.5 * x)))
        swish(beta=1.5)
    """
    dtype = dtype_of(dtype)
    registry = registry_or_default(registry)
    box = BlackBox(function, dtype)
    x = core_inputs(dtype)
    y = box(x)
    structure = structure_of(box, x, y)
    fits = _Fits(x, y, dtype, structure)
    rows = [fits.of(formula) for formula in formulas(registry)]
    if max(row.candidate.share for row in rows) < _FITS:
        parametric = [row.formula for row in rows if scalar_parameters_of(row.formula)]
        refined = [fitted(formula, x, y) for formula in parametric]
        rows += [fits.of(formula) for formula in refined if formula is not None]
    rows = _without_doubles(rows)
    rows.sort(key=lambda row: (-row.candidate.share, row.candidate.absolute))
    best = rows[0].candidate.share
    tied = [row for row in rows if row.candidate.share >= best - _TIED] if best >= _PARTLY else []
    tied, equal, decided = _told_apart(tied, x, y, dtype)
    spec = tied[0].candidate.spec if tied and (best >= _FITS or structure.explains or decided) else None
    ranked = [*tied, *(row for row in rows if all(row.formula is not other.formula for other in tied))]
    nearest = ranked[0].formula
    return Identification(
        spec=spec,
        decided=spec is not None and decided,
        candidates=tuple(row.candidate for row in ranked[:_MOST]),
        equal=tuple(equal) if spec is not None else (),
        first_difference=_first_difference(x, y, nearest(x), dtype),
        notes=(*structure.notes, *deviations(box, nearest, all_inputs(dtype), structure)),
    )


def scalar_parameters_of(formula: Formula) -> dict[str, float]:
    """Return the scalar parameters of a candidate."""
    return scalar_parameters(ActivationSpec.parse(formula.spec), formula.registry)


@dataclass(frozen=True)
class _Row:
    formula: Formula
    candidate: Candidate
    values: Tensor  # of the formula at the core inputs


@dataclass(frozen=True)
class _Fits:
    """Compares a function's values with formulas."""

    x: Tensor
    y: Tensor
    dtype: torch.dtype
    structure: Structure

    def of(self, formula: Formula) -> _Row:
        values = formula(self.x)
        low, high = self.structure.range_of(formula, self.x, values)
        error = torch.where(self.y < low, low - self.y, torch.where(self.y > high, self.y - high, 0.0))
        error = torch.where(self.y.isfinite(), error, torch.inf)
        unit = spacing(torch.maximum(self.x.abs(), values.abs()), self.structure.dtype)
        allowed = _ALLOWED if torch.finfo(self.structure.dtype).bits > 16 else _ALLOWED_IN_16_BIT
        in_units = error / unit
        share = float((in_units <= allowed).double().mean())
        return _Row(formula, Candidate(formula.spec, share, float(in_units.max()), float(error.max())), values)


def _without_doubles(rows: Sequence[_Row]) -> list[_Row]:
    """Leave out what is the same function as a row before it, such as swish with beta=1 beside silu."""
    kept: list[_Row] = []
    for row in sorted(rows, key=lambda row: len(scalar_parameters_of(row.formula))):
        same = (torch.allclose(row.values, other.values, rtol=1e-13, atol=1e-15) for other in kept)
        if not any(same):
            kept.append(row)
    return kept


def _told_apart(tied: Sequence[_Row], x: Tensor, y: Tensor, dtype: torch.dtype) -> tuple[list[_Row], list[str], bool]:
    """Rank tied candidates by the inputs at which they round apart; with those equal to the first, and if it is sure."""
    if len(tied) < 2:
        return list(tied), [], bool(tied)
    rounded = torch.stack([row.values.to(dtype).double() for row in tied])
    telling = (rounded != rounded[0]).any(0) & y.isfinite()
    if not bool(telling.any()):
        return list(tied[:1]), [row.candidate.spec for row in tied[1:]], True
    shares = (rounded[:, telling] == y[telling]).double().mean(1).tolist()
    order = sorted(range(len(tied)), key=lambda index: -shares[index])
    first = order[0]
    same = [i for i in order[1:] if bool((rounded[i] == rounded[first]).all())]
    others = [shares[i] for i in order[1:] if i not in same]
    sure = shares[first] >= _AGREES and all(shares[first] - share >= _AHEAD for share in others)
    ranked = [
        _Row(tied[i].formula, Candidate(**{**vars(tied[i].candidate), "agreement": shares[i]}), tied[i].values)
        for i in order
        if i not in same
    ]
    return ranked, [tied[i].candidate.spec for i in same], sure


def _first_difference(x: Tensor, y: Tensor, values: Tensor, dtype: torch.dtype) -> tuple[float, float, float] | None:
    rounded = values.to(dtype).double()
    wrong = (rounded != y) & ~(rounded.isnan() & y.isnan())
    if not bool(wrong.any()):
        return None
    nearest = x.abs().masked_fill(~wrong, torch.inf).argmin()
    return float(x[nearest]), float(y[nearest]), float(rounded[nearest])
