"""`identify`: which registered activation a function computes, told from its values at chosen inputs.

Tests that allow 1e-3 cannot tell the forms of GELU apart, whose values differ by 4.7e-4 at most. Between two formulas
a and b this module asks where the function lies on the way from one to the other: the least-squares share of a - b in
its difference to b is 1 for a and 0 for b, whatever the rounding that all its values have in common.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.audit.black_box import BlackBox
from lit_gelu.audit.candidates import Formula, fitted, formulas
from lit_gelu.audit.deviations import Deviation, deviations
from lit_gelu.audit.number_format import CORE, SMALL, FloatFormat, NumberFormat, QuantizedDtype, distinct, number_format
from lit_gelu.audit.structure import Structure, structure_of
from lit_gelu.display import Displayed, HtmlTable
from lit_gelu.errors import AuditError

_FITS = 0.98  # the share of inputs at which a function is within what kernels may be off
_TABLE_FITS = 0.9  # the same for a table, whose ends are cut
_LEFT = 0.55  # the share of the interval that deviations may not explain, so that an activation can be told at all
_TIED = 0.02  # candidates whose shares differ by less are told apart by where the function lies between them
_NEAR = 0.25  # how far from 1 that place may be
_ERROR = 0.1  # its standard error, at most
_TOLD_ABOVE = 2.0**-10  # values: where smaller ones round to is decided by a kernel's own errors
_TELLING = 8  # inputs at which two formulas round apart, at least, for correctly rounded values to tell them
_AGREES = 0.5  # of these, the share at which the function has the one formula's number, at least
_ROUNDS = 0.9  # the share of 16-bit inputs at which a sound kernel has the nearest number
_BETTER = 0.8  # times the error of an activation with its defaults: what a fit must reach to be taken instead
_CLOSE = 2.0  # times what sound kernels are off: what a fit is at all inputs, or it only imitates the function
_FAR = 1e4  # units: where errors are cut
_SAME = 1e-7  # relative: two rows that differ by less are one function
_MOST = 5  # candidates that are listed


@dataclass(frozen=True)
class Candidate:
    """A registered activation, and how far a function is from it where |x| <= 12.

    Args:
        spec: The activation.
        share: Of the inputs at which the function is within what kernels may be off.
        ulp: The largest error in units of the value's last place, or in steps of int8.
        absolute: The largest error.
    """

    spec: str
    share: float
    ulp: float
    absolute: float

    def __str__(self) -> str:
        return f"{self.spec}: fits at {self.share:.1%} of inputs, off by {self.absolute:.3g}"


@dataclass(frozen=True, repr=False)
class Identification(Displayed):
    """What `identify` says of a function.

    Args:
        spec: The activation, as the text of its spec; ``None`` if no registered one fits.
        candidates: The nearest activations, the best one first.
        equal: Specs of other activations that are the same numbers in this dtype.
        tied: Specs of other activations that are not, and that the function's values do not tell from it.
        first_difference: The input nearest to 0 at which the function is further from the nearest candidate than
            kernels are, what it gives there, and the correctly rounded value; ``None`` if there is none.
        notes: What else its values show: a table, a coarser dtype, saturation, NaN, subnormals that become 0.
        faults: Those of the notes that matter where nets compute, 2^-8 <= |x| <= 12.
    """

    spec: str | None
    candidates: tuple[Candidate, ...] = ()
    equal: tuple[str, ...] = ()
    tied: tuple[str, ...] = ()
    first_difference: tuple[float, float, float] | None = None
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def decided(self) -> bool:
        """Whether one activation fits, those that are equal in the dtype apart."""
        return self.spec is not None and not self.tied

    @property
    def specs(self) -> tuple[str, ...]:
        """All activations that it may be: the one that is named, and those that cannot be told from it."""
        return () if self.spec is None else (self.spec, *self.equal, *self.tied)

    def __str__(self) -> str:
        if self.spec is None:
            head = f"none that is registered; the nearest is {self.candidates[0]}"
        elif self.decided:
            head = self.spec + (f" (the same numbers: {', '.join(self.equal)})" if self.equal else "")
        else:
            head = f"{self.spec}, or {', or '.join(self.tied)}: these values do not tell"
        lines = [head, *self.notes]
        if self.first_difference is not None:
            at, got, expected = self.first_difference
            lines.append(f"{at:.6g} gives {got:.6g}, and {self.candidates[0].spec} {expected:.6g}")
        return "\n  ".join(lines)

    def _summary(self) -> str:
        return str(self).splitlines()[0]

    def _html_table(self) -> HtmlTable:
        rows = [(row.spec, row.share, row.ulp, row.absolute) for row in self.candidates]
        return HtmlTable(("activation", "fits at", "ulp", "absolute"), rows, self._summary(), self.notes)


def identify(
    function: Callable[[Any], Any],
    dtype: str | torch.dtype | QuantizedDtype = "float32",
    *,
    registry: ActivationRegistry | None = None,
) -> Identification:
    """Tell which registered activation an elementwise function computes.

    It is called with all finite numbers of a 16-bit dtype, or with some 80,000 of a wider one, and compared with every
    registered activation in float64. Scalar parameters (beta, alpha, sigma, limits) are fitted where no activation fits
    with its defaults.

    Args:
        function: From tensor to tensor, or from NumPy array to NumPy array, of any size.
        dtype: Of its inputs: ``"float64"``, ``"float32"``, ``"float16"``, ``"bfloat16"``, or a `QuantizedDtype` for
            a function of int8.
        registry: Whose activations are tried; by default `lit_gelu.activations.registry`.

    Returns:
        The activation, whether it is decided, the nearest ones and what else the values show.

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
    registry = registry_or_default(registry)
    box = BlackBox(function, number_format(dtype))
    core = x = box.format.core_inputs()
    y = box(x)
    if len(distinct(y.nan_to_num())) == 1:
        raise AuditError(f"The function is {float(y[0])} from {float(x[0])} to {float(x[-1])}. Give an activation.")
    structure = structure_of(box, x, y)
    candidates = list(formulas(registry))
    rows = _ranked(_without_doubles([_row(formula, x, y, structure) for formula in candidates], core))
    wide = box.format.all_inputs()
    outputs = box(wide)
    # What a deviation explains is left out, and only then a fit is tried: NaN or saturation is no parameter's work.
    deviating = _deviations(box, rows[0], wide, outputs, structure)
    masks = torch.stack([torch.zeros_like(wide, dtype=torch.bool), *(deviation.mask for deviation in deviating)])
    explained = torch.isin(x, wide[masks.any(0)])
    widths = torch.gradient(core)[0]  # half the numbers of 16 bits are smaller than 1
    if bool(explained.any()) and widths[~explained].sum() >= _LEFT * widths.sum():
        x, y = x[~explained], y[~explained]
        structure = replace(structure, inputs={note: seen[~explained] for note, seen in structure.inputs.items()})
        rows = _ranked(_without_doubles([_row(formula, x, y, structure) for formula in candidates], core))
    limit = _TABLE_FITS if structure.is_table else _FITS
    if rows[0].candidate.share < limit or not _is_close(rows[0], y, structure):
        rows = _ranked([*rows, *_fitted_rows(candidates, rows, x, y, structure, core)])
    fits = rows[0].candidate.share >= limit
    rows = _nearest_first(rows, y, structure.format) if fits else rows
    best = rows[0]
    deviating = _deviations(box, best, wide, outputs, structure)
    usual = (wide.abs() <= CORE) & (wide.abs() >= SMALL)
    numbers = {id(row): structure.format.rounded(row.formula(core)).nan_to_num() for row in rows}
    equal = [row for row in rows[1:] if torch.equal(numbers[id(row)], numbers[id(best)])]
    rows = [row for row in rows if row not in equal]
    undecided = [row for row in rows[1:] if _is_tied(row, best) and not _preference(best, row, y, structure.format)[1]]
    return Identification(
        spec=best.candidate.spec if fits else None,
        candidates=tuple(row.candidate for row in rows[:_MOST]),
        equal=_specs([best, *equal])[1:] if fits else (),
        tied=_specs(undecided) if fits else (),
        first_difference=_first_difference(box.format, wide, outputs, best, structure),
        notes=tuple(filter(None, [best.note, *(deviation.note for deviation in deviating)])),
        faults=tuple(filter(None, [best.note, *(d.note for d in deviating if bool(d.mask[usual].any()))])),
    )


def _specs(rows: Sequence["_Row"]) -> tuple[str, ...]:
    return tuple(spec for row in rows for spec in (row.candidate.spec, *row.doubles))


@dataclass(frozen=True, eq=False)
class _Row:
    """A candidate with the formula's values at the core inputs, and where on them the function is judged."""

    formula: Formula
    candidate: Candidate
    values: Tensor
    unit: Tensor
    seen: Tensor  # what the function sees instead of its inputs
    spread: float  # root mean square of the error in units, large ones cut
    mean: float  # of the error, cut at 1
    note: str  # which says so
    doubles: tuple[str, ...] = ()  # other activations that are the same function


def _row(formula: Formula, x: Tensor, y: Tensor, structure: Structure) -> _Row:
    """Compare a function with a formula, at the inputs that it most probably sees."""
    form = structure.format
    rows = []
    for note, seen in structure.inputs.items():
        values = form.clamped(formula(seen))
        unit = form.unit(x, values)
        error = torch.where(y.isnan() & values.isnan(), 0.0, (y - values).abs().nan_to_num(torch.inf, torch.inf))
        in_units = error / unit
        candidate = Candidate(
            str(formula),
            float((in_units <= form.allowed).double().mean()),
            float((error / form.spacing(values)).max()),
            float(error.max()),
        )
        spread = float(in_units.clamp(max=_FAR).square().mean().sqrt())
        rows.append(_Row(formula, candidate, values, unit, seen, spread, float(error.clamp(max=1.0).mean()), note))
    return _ranked(rows)[0]


def _ranked(rows: Sequence[_Row]) -> list[_Row]:
    """Sort by how often candidates fit and how well; those that hardly ever fit, by their error."""

    def rank(row: _Row) -> tuple[float, float]:
        share = round(row.candidate.share, 2)
        return (-share, row.spread) if share > 1 - _LEFT else (0.0, row.mean)

    return sorted(rows, key=rank)


def _without_doubles(rows: Sequence[_Row], x: Tensor) -> list[_Row]:
    """Put what is the same function as a row before it behind that one, as swish with beta=1 is silu."""
    kept: list[tuple[_Row, Tensor]] = []
    for row in rows:
        values = row.formula(x)
        for i, (other, others) in enumerate(kept):
            if torch.allclose(values, others, rtol=_SAME, atol=_SAME**2):
                kept[i] = replace(other, doubles=(*other.doubles, row.candidate.spec)), others
                break
        else:
            kept.append((row, values))
    return [row for row, _ in kept]


def _fitted_rows(
    candidates: Sequence[Formula], rows: Sequence[_Row], x: Tensor, y: Tensor, structure: Structure, core: Tensor
) -> list[_Row]:
    """Return candidates with fitted parameters, if they are clearly better than those with defaults."""
    refined = [(formula, fitted(formula, rows[0].seen, y)) for formula in candidates]
    fits = [_row(new, x, y, structure) for old, new in refined if new and _differ(old, new, structure.format)]
    limit, share = _BETTER * rows[0].spread, rows[0].candidate.share
    fits = [row for row in fits if row.spread < limit and row.candidate.share >= share]
    if not structure.is_table:  # each value is to be near
        most = _CLOSE * structure.format.allowed
        fits = [row for row in fits if bool(((y - row.values).abs().nan_to_num(0.0) <= most * row.unit).all())]
    return _without_doubles(fits, core)


def _differ(old: Formula, new: Formula, form: NumberFormat) -> bool:
    """Return whether parameters differ by more than a module's do that is converted to a dtype."""
    if not isinstance(form, FloatFormat):
        return True
    before, after = (torch.tensor(list(each.parameters.values()), dtype=torch.float64) for each in (old, new))
    return not torch.equal(form.rounded(before), form.rounded(after))


def _is_close(row: _Row, y: Tensor, structure: Structure) -> bool:
    """Return whether a function is as near to a candidate as sound kernels are, so that no parameter is fitted."""
    form = structure.format
    return row.spread <= form.usual and (form.wide or float((form.rounded(row.values) == y).double().mean()) >= _ROUNDS)


def _deviations(box: BlackBox, row: _Row, x: Tensor, y: Tensor, structure: Structure) -> list[Deviation]:
    return list(deviations(box.format, x, y, row.formula(x), is_table=structure.is_table))


def _is_tied(row: _Row, best: _Row) -> bool:
    return row.candidate.share >= best.candidate.share - _TIED


def _nearest_first(rows: Sequence[_Row], y: Tensor, form: NumberFormat) -> list[_Row]:
    """Put first, of the candidates that are tied, the one that is preferred to most others."""
    # It may be the one with the larger error: of a table that is shifted, say, or of a kernel that rounds coarsely.
    tied = [row for row in rows if _is_tied(row, rows[0])]
    wins = {id(a): sum(_preference(a, b, y, form)[0] > 0 for b in tied if b is not a) for a in tied}
    return [*sorted(tied, key=lambda row: -wins[id(row)]), *rows[len(tied) :]]


def _preference(a: _Row, b: _Row, y: Tensor, form: NumberFormat) -> tuple[float, bool]:
    """Return how much rather a function is a than b, from -1 to 1, and whether it is a for certain."""
    everywhere, *sides = (_place(a, b, y, form, mask) for mask in (a.seen == a.seen, a.seen < 0, a.seen > 0))
    # A function may be a on one side of 0, and something else on the other.
    contradicted = any(error <= _ERROR and place < 0.5 for place, error in sides)
    place, error = everywhere
    return max(-1.0, min(1.0, 2 * place - 1)), abs(place - 1) <= _NEAR and error <= _ERROR and not contradicted


def _place(a: _Row, b: _Row, y: Tensor, form: NumberFormat, mask: Tensor) -> tuple[float, float]:
    """Return where a function lies on the way from b to a, which are 0 and 1, and the standard error of that."""
    if not form.wide:
        rounded_a, rounded_b = form.rounded(a.values), form.rounded(b.values)
        size = torch.maximum(a.values.abs(), b.values.abs())
        telling = mask & (rounded_a != rounded_b) & y.isfinite() & (size >= _TOLD_ABOVE)
        if int(telling.sum()) >= _TELLING:
            agrees_a, agrees_b = (float((r == y)[telling].double().mean()) for r in (rounded_a, rounded_b))
            if max(agrees_a, agrees_b) >= _AGREES:  # else it does not round correctly, which says nothing
                return agrees_a / (agrees_a + agrees_b), 0.0
    way, behind = ((values / b.unit).nan_to_num(0.0, 0.0, 0.0) for values in (a.values - b.values, y - b.values))
    near = mask & (behind.abs() <= _FAR)  # what is far from both says nothing
    way, behind = way[near], behind[near]
    length = float(way.square().sum())
    if length == 0:
        return 0.5, torch.inf
    place = float((way * behind).sum()) / length
    return place, float((behind - place * way).square().mean().sqrt()) / length**0.5


def _first_difference(
    form: NumberFormat, x: Tensor, y: Tensor, best: _Row, structure: Structure
) -> tuple[float, float, float] | None:
    values = form.clamped(best.formula(x))
    error = (y - values).abs() / structure.format.unit(x, values)
    wrong = (error.nan_to_num(torch.inf) > structure.format.allowed) & (y != form.rounded(values))
    wrong &= ~(y.isnan() & values.isnan())
    if not bool(wrong.any()):
        return None
    nearest = x.abs().masked_fill(~wrong, torch.inf).argmin()
    return float(x[nearest]), float(y[nearest]), float(form.rounded(values)[nearest])
