"""Closed forms for functions made of pieces ``sum c x^k exp(r x)``: the ReLU and ELU kin, hard sigmoid, hard Swish."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

import torch
from torch import Tensor

from lit_gelu.activations.numerics.normal import CANCELLED, GaussianMoments, kink_mass, sized_interval_moments


@dataclass(frozen=True)
class Term:
    """``coefficient x^power exp(rate x)``."""

    coefficient: float
    power: int = 0
    rate: float = 0.0

    def __mul__(self, other: "Term") -> "Term":
        return Term(self.coefficient * other.coefficient, self.power + other.power, self.rate + other.rate)

    def derivative(self) -> tuple["Term", ...]:
        """Return the terms of the derivative."""
        terms = (
            Term(self.coefficient * self.power, self.power - 1, self.rate),
            Term(self.coefficient * self.rate, self.power, self.rate),
        )
        return tuple(term for term in terms if term.coefficient != 0.0)


@dataclass(frozen=True)
class Piece:
    """What the function is between two bounds: a sum of terms, none for 0."""

    low: float
    high: float
    terms: tuple[Term, ...] = ()

    def derivative(self) -> "Piece":
        """Return the piece of the derivative."""
        return Piece(self.low, self.high, tuple(t for term in self.terms for t in term.derivative()))

    def squared(self) -> "Piece":
        """Return the square."""
        return Piece(self.low, self.high, tuple(a * b for a, b in product(self.terms, self.terms)))

    def at(self, x: float) -> float:
        """Return the value at one place."""
        return math.fsum(t.coefficient * x**t.power * math.exp(t.rate * x) for t in self.terms)

    def halves(self) -> tuple["Piece", ...]:
        """Return what it is left and right of 0, where a term may change its sign."""
        return (replace(self, high=0.0), replace(self, low=0.0)) if self.low < 0.0 < self.high else (self,)

    def has_one_sign(self) -> bool:
        """Return whether all terms have the same sign, of a piece on one side of 0."""
        return len({(t.coefficient > 0) == (self.low >= 0 or t.power % 2 == 0) for t in self.terms}) < 2

    def expectation(self, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``E[piece(x) 1(low < x < high)]``, and the size of the terms that it is the sum of."""
        total = size = torch.zeros_like(mean + std)
        for term in self.terms:
            moments = sized_interval_moments(mean, std, self.low, self.high, term.power, term.rate)
            moment, moment_size = moments[term.power]
            total, size = total + term.coefficient * moment, size + abs(term.coefficient) * moment_size
        return total, size


INF = math.inf
LINE = (Term(1.0, 1),)


def two_sided(slope: float) -> tuple[Piece, ...]:
    """Return the pieces of a line through 0 on each side."""
    return Piece(-INF, 0.0, (Term(slope, 1),)), Piece(0.0, INF, LINE)


def exponential(alpha: float = 1.0, rate: float = 1.0, scale: float = 1.0) -> tuple[Piece, ...]:
    """Return the pieces of ``scale x`` on the right and ``scale alpha (exp(rate x) - 1)`` on the left."""
    left = (Term(scale * alpha, 0, rate), Term(-scale * alpha))
    return Piece(-INF, 0.0, left), Piece(0.0, INF, (Term(scale, 1),))


@dataclass(frozen=True)
class PiecewiseMoments:
    """The closed moments of a function made of pieces, as a row of the registry has them.

    Those that are positive are NaN where they are a small difference of large terms, and ``E |f''|`` is NaN where the
    terms of f'' have different signs on one side of 0 in one piece: quadrature takes their place.

    Args:
        pieces: The pieces, or a function from the activation's arguments to them.

    Example:
        >>> mean, std = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
        >>> PiecewiseMoments(two_sided(0.0))(mean, std).value_squared.item()
        0.5
    """

    pieces: tuple[Piece, ...] | Callable[..., tuple[Piece, ...]]

    def __call__(self, mean: Tensor, std: Tensor, **arguments: float) -> GaussianMoments:
        """Return the moments."""
        return piecewise_moments(self.pieces(**arguments) if callable(self.pieces) else self.pieces, mean, std)


def piecewise_moments(pieces: Sequence[Piece], mean: Tensor, std: Tensor) -> GaussianMoments:
    """Return the moments of a function made of pieces, in closed form: each is a sum of truncated moments."""
    slopes = [piece.derivative() for piece in pieces]
    bends = [slope.derivative() for slope in slopes]

    def total(parts: Sequence[Piece]) -> tuple[Tensor, Tensor]:
        sums, sizes = zip(*(part.expectation(mean, std) for part in parts), strict=True)
        return torch.stack(sums).sum(0), torch.stack(sizes).sum(0)

    value, size = total(pieces)
    value_squared, size_squared = total([piece.squared() for piece in pieces])
    return GaussianMoments(
        value=value,
        value_squared=_unless_cancelled(value_squared, size_squared),
        variance=_unless_cancelled(value_squared - value * value, size_squared + 3 * value.abs() * size),
        derivative=total(slopes)[0],
        derivative_squared=_unless_cancelled(*total([slope.squared() for slope in slopes])),
        abs_second_derivative=_expectation_of_size(bends, mean, std),
        kink=kink_mass(mean, std, [(b.low, b.at(b.low) - a.at(a.high)) for a, b in pairwise(slopes)]),
    )


def _expectation_of_size(pieces: Sequence[Piece], mean: Tensor, std: Tensor) -> Tensor:
    """Return ``E |g|`` of a function g made of pieces, NaN if it is not known where g changes its sign."""
    halves = [half for piece in pieces for half in piece.halves()]
    if not all(half.has_one_sign() for half in halves):
        return torch.full_like(mean + std, torch.nan)
    return torch.stack([_unless_cancelled(*half.expectation(mean, std)) for half in halves]).sum(0)


def _unless_cancelled(total: Tensor, size: Tensor) -> Tensor:
    """Return the size of a sum, NaN where it is too small a part of the sizes of its terms."""
    return torch.where(total.abs() >= CANCELLED * size, total.abs(), torch.nan)
