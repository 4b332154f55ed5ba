"""Formulas as sums of products, so that every spelling of one formula is the same sum.

``0.5 * x * (1 + Erf(x / sqrt(2)))``, ``x * (Erf(0.70710678 * x) + 1) / 2`` and ``x - x * 0.5 * (1 - Erf(...))`` all
expand to ``0.5 x + 0.5 x Erf(0.70710678 x)``. Functions (Erf, Tanh, Exp ...) stay as they are, with their arguments
expanded. Equal means equal up to float32's rounding of the constants.
"""

from dataclasses import dataclass

import numpy as np

RELATIVE = 2.5e-7  # of constants: two units in the last place of float32
_MOST_TERMS = 8
_HIGHEST_POWER = 4
FUNCTIONS = frozenset({"Erf", "Tanh", "Sigmoid", "Exp", "Log", "Softplus"})
_ODD = frozenset({"Erf", "Tanh"})


class NotAFormulaError(Exception):
    """A value is no short formula of the chosen variable. Only this package's matcher sees it."""


@dataclass(frozen=True)
class Function:
    """A function of sums.

    Args:
        name: An operator.
        arguments: Its arguments.
    """

    name: str
    arguments: tuple["Sum", ...]


@dataclass(frozen=True)
class Term:
    """A constant times a power of the variable times functions of it.

    Args:
        constant: A number, or an array that broadcasts against the variable.
        power: Of the variable.
        functions: The functions, sorted by name.
    """

    constant: np.ndarray
    power: int
    functions: tuple[Function, ...] = ()


Sum = tuple[Term, ...]


def number(value: float | np.ndarray) -> Sum:
    """Return a constant as a sum.

    Args:
        value: The constant.

    Returns:
        No term for 0, else one.
    """
    array = np.asarray(value, dtype=np.float64)
    return (Term(array, 0),) if np.any(array) else ()


def variable(factor: float = 1.0, power: int = 1) -> Sum:
    """Return the variable, times a constant.

    Args:
        factor: The constant.
        power: The variable's power.

    Returns:
        One term.
    """
    return (Term(np.asarray(factor, dtype=np.float64), power),)


def function_of(name: str, *arguments: Sum) -> Sum:
    """Return a function as a sum, as it stands; `apply` knows what functions have in common.

    Args:
        name: An operator.
        *arguments: Its arguments.

    Returns:
        One term.
    """
    return (Term(np.asarray(1.0), 0, (Function(name, arguments),)),)


def apply(name: str, *arguments: Sum) -> Sum:
    """Return a function of sums, in the form in which it is compared.

    ``Erf(-z) = -Erf(z)``, ``Tanh(-z) = -Tanh(z)``, ``1 / (1 + Exp(z)) = Sigmoid(-z)``, ``Log(1 + Exp(z)) =
    Softplus(z)``, and ``Where(Greater(z, c), z, Softplus(z)) = Softplus(z)`` for c >= 20, which is how torch writes it.

    Args:
        name: An operator.
        *arguments: Its arguments.

    Returns:
        One term.

    Example:
        >>> same(apply("Erf", variable(-2.0)), scaled(apply("Erf", variable(2.0)), -1.0))
        True
    """
    if name in _ODD and arguments[0] and float(arguments[0][0].constant.flat[0]) < 0:
        return scaled(function_of(name, scaled(arguments[0], -1.0)), -1.0)
    if name in {"Reciprocal", "Log"} and (exponent := _one_plus_exp(arguments[0])) is not None:
        if name == "Log":
            return function_of("Softplus", exponent)
        return function_of("Sigmoid", scaled(exponent, -1.0))
    if name == "Where" and (plain := _cut_softplus(arguments)) is not None:
        return plain
    return function_of(name, *arguments)


def add(first: Sum, second: Sum) -> Sum:
    """Return the sum of two sums.

    Args:
        first: One.
        second: The other.

    Returns:
        Their sum, like terms collected.

    Raises:
        NotAFormulaError: If it has too many terms.
    """
    terms = list(first)
    for term in second:
        for i, known in enumerate(terms):
            if known.power == term.power and _same_functions(known.functions, term.functions):
                terms[i] = Term(known.constant + term.constant, term.power, term.functions)
                break
        else:
            terms.append(term)
    if len(terms) > _MOST_TERMS:
        raise NotAFormulaError
    return tuple(sorted((term for term in terms if np.any(term.constant)), key=_order))


def multiply(first: Sum, second: Sum) -> Sum:
    """Return the product of two sums, expanded.

    Args:
        first: One.
        second: The other.

    Returns:
        Their product.

    Raises:
        NotAFormulaError: If it has too many terms or too high a power.
    """
    product: Sum = ()
    for a in first:
        for b in second:
            functions = tuple(sorted((*a.functions, *b.functions), key=lambda function: function.name))
            if a.power + b.power > _HIGHEST_POWER or len(functions) > _HIGHEST_POWER:
                raise NotAFormulaError
            product = add(product, (Term(a.constant * b.constant, a.power + b.power, functions),))
    return product


def scaled(terms: Sum, factor: float | np.ndarray) -> Sum:
    """Return a sum times a constant.

    Args:
        terms: The sum.
        factor: The constant.

    Returns:
        The product.
    """
    return tuple(Term(term.constant * factor, term.power, term.functions) for term in terms)


def same(first: Sum, second: Sum) -> bool:
    """Return whether two sums are the same formula, with constants equal up to float32's rounding.

    Args:
        first: One.
        second: The other.

    Returns:
        Whether they are.

    Example:
        >>> same(variable(0.70710677), variable(0.5**0.5)), same(variable(0.7071), variable(0.5**0.5))
        (True, False)
    """
    return len(first) == len(second) and all(
        a.power == b.power and close(a.constant, b.constant) and _same_functions(a.functions, b.functions)
        for a, b in zip(first, second, strict=True)
    )


def close(first: np.ndarray | float, second: np.ndarray | float) -> bool:
    """Return whether two constants are equal up to float32's rounding.

    Args:
        first: One.
        second: The other.

    Returns:
        Whether they are.
    """
    return np.shape(first) == np.shape(second) and bool(np.allclose(first, second, rtol=RELATIVE, atol=0.0))


def _order(term: Term) -> tuple[int, tuple[str, ...]]:
    return term.power, tuple(function.name for function in term.functions)


def _same_functions(first: tuple[Function, ...], second: tuple[Function, ...]) -> bool:
    return len(first) == len(second) and all(
        a.name == b.name
        and len(a.arguments) == len(b.arguments)
        and all(same(x, y) for x, y in zip(a.arguments, b.arguments, strict=True))
        for a, b in zip(first, second, strict=True)
    )


def _one_plus_exp(terms: Sum) -> Sum | None:
    """Return z of ``1 + Exp(z)``."""
    if len(terms) == 2 and same(terms[:1], number(1.0)):
        exponential = terms[1]
        if exponential.power == 0 and close(exponential.constant, 1.0) and len(exponential.functions) == 1:
            (function,) = exponential.functions
            return function.arguments[0] if function.name == "Exp" else None
    return None


def _cut_softplus(arguments: tuple[Sum, ...]) -> Sum | None:
    """Return ``Softplus(z)`` of ``Where(Greater(z, c), z, Softplus(z))`` with c >= 20: above, the two are one."""
    condition, above, below = arguments
    if len(condition) != 1 or len(condition[0].functions) != 1 or condition[0].functions[0].name != "Greater":
        return None
    z, limit = condition[0].functions[0].arguments
    beyond = len(limit) == 1 and limit[0].power == 0 and not limit[0].functions and np.all(limit[0].constant >= 20)
    return below if beyond and same(z, above) and same(below, apply("Softplus", z)) else None
