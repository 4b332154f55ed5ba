"""Formulas as sums of products, so that every spelling of one formula is the same sum.

``0.5 * x * (1 + Erf(x / sqrt(2)))``, ``x * (Erf(0.70710678 * x) + 1) / 2`` and ``x - x * 0.5 * (1 - Erf(...))`` all
expand to ``0.5 x + 0.5 x Erf(0.70710678 x)``. Functions (Erf, Tanh, Exp ...) stay as they are, with their arguments
expanded. Equal means equal up to float32's rounding of the constants.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

RELATIVE = 2.5e-7  # of constants: two units in the last place of float32
_MOST_TERMS = 8
_HIGHEST_POWER = 4
FUNCTIONS = frozenset({"Erf", "Tanh", "Sigmoid", "Exp", "Log", "Softplus"})
_ODD = frozenset({"Erf", "Tanh"})
_LARGEST_ARRAY = 1 << 14  # one value a channel, not a weight matrix


class NotAFormulaError(Exception):
    """A value is no short formula of the chosen variable. Only this package's matcher sees it."""


@dataclass(frozen=True)
class Function:
    """A function of sums."""

    name: str  # an operator
    arguments: tuple["Sum", ...]


@dataclass(frozen=True)
class Monomial:
    """A constant times a power of the variable times functions of it."""

    constant: np.ndarray  # a number, or an array that broadcasts against the variable
    power: int
    functions: tuple[Function, ...] = ()  # sorted by name


Sum = tuple[Monomial, ...]


def number(value: float | np.ndarray) -> Sum:
    """Return a constant as a sum."""
    array = np.asarray(value, dtype=np.float64)
    return (Monomial(array, 0),) if np.any(array) else ()


def variable(factor: float = 1.0, power: int = 1) -> Sum:
    """Return the variable, times a constant."""
    return (Monomial(np.asarray(factor, dtype=np.float64), power),)


def function_of(name: str, *arguments: Sum) -> Sum:
    """Return a function as a sum, as it stands; `apply` knows what functions have in common."""
    return (Monomial(np.asarray(1.0), 0, (Function(name, arguments),)),)


def apply(name: str, *arguments: Sum) -> Sum:
    """Return a function of sums, in the form in which it is compared."""
    # Erf(-z) = -Erf(z), Tanh(-z) = -Tanh(z), 1 / (1 + Exp(z)) = Sigmoid(-z), Log(1 + Exp(z)) = Softplus(z), and
    # Where(Greater(z, c), z, Softplus(z)) = Softplus(z) for c >= 20, which is how torch writes it.
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
    """Return the sum of two sums."""
    terms = list(first)
    for term in second:
        for i, monomial in enumerate(terms):
            if monomial.power == term.power and _same_functions(monomial.functions, term.functions):
                terms[i] = Monomial(monomial.constant + term.constant, term.power, term.functions)
                break
        else:
            terms.append(term)
    if len(terms) > _MOST_TERMS:
        raise NotAFormulaError
    present = (term for term in terms if np.any(term.constant))
    return tuple(sorted(present, key=lambda term: (term.power, [function.name for function in term.functions])))


def multiply(first: Sum, second: Sum) -> Sum:
    """Return the product of two sums, expanded."""
    product: Sum = ()
    for a in first:
        for b in second:
            functions = tuple(sorted((*a.functions, *b.functions), key=lambda function: function.name))
            if a.power + b.power > _HIGHEST_POWER or len(functions) > _HIGHEST_POWER:
                raise NotAFormulaError
            product = add(product, (Monomial(a.constant * b.constant, a.power + b.power, functions),))
    return product


def scaled(terms: Sum, factor: float | np.ndarray) -> Sum:
    """Return a sum times a constant."""
    return tuple(Monomial(term.constant * factor, term.power, term.functions) for term in terms)


def same(first: Sum, second: Sum, relative: float = RELATIVE) -> bool:
    """Return whether two sums are the same formula, with constants equal up to rounding."""
    return len(first) == len(second) and all(
        a.power == b.power
        and close(a.constant, b.constant, relative)
        and _same_functions(a.functions, b.functions, relative)
        for a, b in zip(first, second, strict=True)
    )


def close(first: np.ndarray | float, second: np.ndarray | float, relative: float = RELATIVE) -> bool:
    """Return whether two constants are equal up to rounding."""
    return np.shape(first) == np.shape(second) and bool(np.allclose(first, second, rtol=relative, atol=0.0))


def _same_functions(first: tuple[Function, ...], second: tuple[Function, ...], relative: float = RELATIVE) -> bool:
    return len(first) == len(second) and all(
        a.name == b.name
        and len(a.arguments) == len(b.arguments)
        and all(same(x, y, relative) for x, y in zip(a.arguments, b.arguments, strict=True))
        for a, b in zip(first, second, strict=True)
    )


def _one_plus_exp(terms: Sum) -> Sum | None:
    """Return z of ``1 + Exp(z)``."""
    match terms:
        case (one, Monomial(power=0, functions=(Function("Exp", (z,)),)) as exponential):
            return z if same((one,), number(1.0)) and close(exponential.constant, 1.0) else None
    return None


def _cut_softplus(arguments: tuple[Sum, ...]) -> Sum | None:
    """Return ``Softplus(z)`` of ``Where(Greater(z, c), z, Softplus(z))`` with c >= 20: above, the two are one."""
    match arguments:
        case ((Monomial(functions=(Function("Greater", (z, limit)),)),), above, below):
            beyond = _is_constant(limit) and np.all(limit[0].constant >= 20)
            return below if beyond and same(z, above) and same(below, apply("Softplus", z)) else None
    return None


def expand(value: ir.Value, x: ir.Value, depth: int = 12) -> Sum:
    """Return a value of a graph as a formula of another."""
    if value is x:
        return variable()
    constant = constant_of(value)
    if constant is not None:
        return number(constant)
    node = value.producer()
    if node is None or depth == 0 or node.domain not in {"", "ai.onnx"} or len(node.outputs) != 1:
        raise NotAFormulaError
    rule = _RULES.get(node.op_type)
    if rule is None and node.op_type not in FUNCTIONS:
        raise NotAFormulaError
    inputs = [expand(operand, x, depth - 1) for operand in node.inputs if operand is not None]
    return rule(inputs, node) if rule is not None else apply(node.op_type, *inputs)


def constant_of(value: ir.Value) -> np.ndarray | None:
    """Return a constant's value: a number, or an array as it broadcasts."""
    tensor = value.const_value
    node = value.producer()
    if tensor is None and node is not None and node.op_type == "Constant":
        attribute = node.attributes.get("value")
        tensor = attribute.as_tensor() if attribute is not None else None
    if tensor is None or tensor.size > _LARGEST_ARRAY or tensor.dtype == ir.DataType.STRING:
        return None
    array: np.ndarray = tensor.numpy().astype(np.float64)
    return array.reshape(()) if array.size == 1 else array


def _is_constant(terms: Sum) -> bool:
    return len(terms) == 1 and not terms[0].power and not terms[0].functions


def _power(inputs: list[Sum], _: ir.Node) -> Sum:
    base, exponent = inputs
    if not _is_constant(exponent) or exponent[0].constant.ndim or float(exponent[0].constant) not in {1, 2, 3, 4}:
        raise NotAFormulaError
    return functools.reduce(multiply, [base] * int(exponent[0].constant))


def _divide(inputs: list[Sum], _: ir.Node) -> Sum:
    top, bottom = inputs
    if _is_constant(bottom) and np.all(bottom[0].constant):
        return scaled(top, 1.0 / bottom[0].constant)
    return multiply(top, apply("Reciprocal", bottom))


def _clip(inputs: list[Sum], node: ir.Node) -> Sum:
    """Return ``Clip(z, 0, b)`` as b times a cut to [0, 1]; others are no part of a known formula."""
    if len(inputs) != 3 or inputs[1] or node.inputs[1] is None:
        raise NotAFormulaError
    return _cut(inputs[0], inputs[2])


def _minimum(inputs: list[Sum], _: ir.Node) -> Sum:
    """Return ``Min(Relu(z), b)``, as onnxscript writes ReLU6 up to 0.7.0, like ``Clip(z, 0, b)``."""
    match inputs:
        case [(Monomial(power=0, functions=(Function("Relu", (z,)),)) as relu,), upper] if relu.constant == 1.0:
            return _cut(z, upper)
    raise NotAFormulaError


def _cut(z: Sum, bound: Sum) -> Sum:
    """Return what is cut to [0, bound] as bound times a cut to [0, 1]."""
    if not _is_constant(bound) or bound[0].constant.ndim or bound[0].constant <= 0:
        raise NotAFormulaError
    upper = bound[0].constant
    return scaled(function_of("Cut", scaled(z, 1.0 / upper)), upper)


def _hard_sigmoid(inputs: list[Sum], node: ir.Node) -> Sum:
    alpha, beta = (
        node.attributes[name].as_float() if name in node.attributes else default
        for name, default in (("alpha", 0.2), ("beta", 0.5))
    )
    return function_of("Cut", add(scaled(inputs[0], alpha), number(beta)))


_RULES: Mapping[str, Callable[[list[Sum], ir.Node], Sum]] = {
    "Add": lambda inputs, _: add(*inputs),
    "Sub": lambda inputs, _: add(inputs[0], scaled(inputs[1], -1.0)),
    "Neg": lambda inputs, _: scaled(inputs[0], -1.0),
    "Mul": lambda inputs, _: multiply(*inputs),
    "Div": _divide,
    "Pow": _power,
    "Reciprocal": lambda inputs, _: apply("Reciprocal", inputs[0]),
    "Identity": lambda inputs, _: inputs[0],
    "Clip": _clip,
    "Relu": lambda inputs, _: function_of("Relu", inputs[0]),
    "Min": _minimum,
    "HardSigmoid": _hard_sigmoid,
    "Where": lambda inputs, _: apply("Where", *inputs),
    "Greater": lambda inputs, _: function_of("Greater", *inputs),
    "Less": lambda inputs, _: function_of("Less", *inputs),
}
