"""Closed forms for functions made of pieces ``sum c x^k exp(r x)``: the ReLU and ELU kin, hard sigmoid, hard Swish."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import torch
from torch import Tensor

from lit_gelu.activations.numerics.normal import GaussianMoments, interval_moments, kink_mass


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

    def expectation(self, mean: Tensor, std: Tensor) -> Tensor:
        """Return ``E[piece(x) 1(low < x < high)]``."""
        total = torch.zeros_like(mean + std)
        for term in self.terms:
            moments = interval_moments(mean, std, self.low, self.high, term.power, term.rate)
            total = total + term.coefficient * moments[term.power]
        return total


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

    def total(parts: Sequence[Piece]) -> Tensor:
        return torch.stack([part.expectation(mean, std) for part in parts]).sum(0)

    value, value_squared = total(pieces), total([piece.squared() for piece in pieces])
    return GaussianMoments(
        value=value,
        value_squared=value_squared,
        variance=value_squared - value * value,
        derivative=total(slopes),
        derivative_squared=total([slope.squared() for slope in slopes]),
        abs_second_derivative=torch.stack([bend.expectation(mean, std).abs() for bend in bends]).sum(0),
        kink=kink_mass(mean, std, [(b.low, b.at(b.low) - a.at(a.high)) for a, b in pairwise(slopes)]),
    )
