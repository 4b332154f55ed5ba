"""Finds activations that were written by hand, or called as functions, and marks each as one node.

A spelling is recognised as a formula (`lit_gelu.export.lowering.algebra`), so the order of factors and operands, and
where a constant is multiplied in, do not matter. Constants must be those of the formula up to float32's rounding: what
somebody wrote with 0.7071 for the root of one half is another function and is left alone.

What is recognised stands in the rows of the activations, `OnnxRecipes.spellings` and ``operator``, those that a user
registered included, and in `lit_gelu.export.lowering.lowering_table.CALLS`.
"""

import ast
import contextlib
import itertools
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir import convenience

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.families import ENTRIES
from lit_gelu.activations.naming.entry import ActivationEntry
from lit_gelu.activations.onnx_recipes import OnnxOperator, OnnxSpelling
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.errors import ArgumentError, LitGeluError, SpecError
from lit_gelu.export.inputs import SCOPE
from lit_gelu.export.lowering.algebra import RELATIVE, NotAFormulaError, Sum, constant_of, expand, same
from lit_gelu.export.lowering.lowering_table import (
    CALLS,
    CONTRIB_DOMAIN,
    MARKER_DOMAIN,
    MARKER_OPERATOR,
    Argument,
    BoundActivation,
    RecipeBuilder,
    bind_named,
    built_in,
    cases,
    names_in,
)

Recognised = tuple[BoundActivation, ir.Value]

_ROOTS = frozenset({"Mul", "Div", "Add", "Sub", "Neg", "Log", "Where"})
_WITHIN = frozenset({
    *_ROOTS, "Erf", "Tanh", "Sigmoid", "Exp", "Softplus", "Clip", "Relu", "Min", "HardSigmoid", "Pow", "Greater",
    "Less", "Reciprocal", "Identity",
})  # fmt: skip
_NONLINEAR = frozenset({"Erf", "Tanh", "Sigmoid", "Exp", "Softplus", "Clip", "Min", "HardSigmoid"})
_DEPTH = 12
_LARGEST_CONE = 40
_CONTRIB = {
    "BiasGelu": ActivationSpec("gelu"),
    "FastGelu": ActivationSpec.of("gelu", approximate="tanh"),
    "Gelu": ActivationSpec("gelu"),
}
_QUICK_ALPHA = 1.702  # the factor of x that QuickGelu has by default
_PROBES = (1.25, 1.75)  # stand for unknown arguments where only a formula's shape is compared
_FLOATS = (None, ir.DataType.FLOAT, ir.DataType.DOUBLE)
_ROUNDINGS = {ir.DataType.FLOAT16: 2.0**-10, ir.DataType.BFLOAT16: 2.0**-7}  # two, of constants in 16 bit


@dataclass(frozen=True)
class _Spelling:
    """A formula of one activation; ``unknown`` are the arguments that are whatever the graph has there."""

    name: str
    spelling: OnnxSpelling
    unknown: tuple[str, ...]

    def of(self, arguments: Mapping[str, Argument]) -> Sum:
        """Return the formula with values of its unknown arguments; `NotAFormulaError` if it is none with these."""
        x = ir.Value(name="x")
        values: Any = {**self.spelling.arguments, **arguments}  # text is in no formula
        builder = RecipeBuilder(x, values, lambda array, name: ir.Value(name=name, const_value=ir.tensor(array)))
        return expand(builder.build(self.spelling.formula), x, _DEPTH)

    @cached_property
    def probe(self) -> Sum:
        """The formula with some values of its unknown arguments."""
        return self.of(dict(zip(self.unknown, itertools.cycle(_PROBES), strict=False)))

    def resembles(self, formula: Sum) -> bool:
        """Return whether a formula is this one with other constants."""
        return _outline(self.probe) == _outline(formula)

    def arguments_in(self, formula: Sum, relative: float) -> dict[str, Argument | str] | None:
        """Return the arguments with which a formula is this one; ``None`` if it is another."""
        if not self.unknown:
            same_one = same(self.probe, formula, relative)
            return dict(self.spelling.arguments) if same_one else None  # type: ignore[arg-type]
        if not self.resembles(formula):
            return None
        for values in itertools.product(list(_constants(formula)), repeat=len(self.unknown)):
            matched = {name: _written(value) for name, value in zip(self.unknown, values, strict=True)}
            with contextlib.suppress(NotAFormulaError):
                if not same(self.of(matched), formula, relative):
                    continue
                along = {"channel_dim": -1} if any(value.ndim for value in values) else {}
                return {**self.spelling.arguments, **matched, **along}  # type: ignore[dict-item]
        return None


def _outline(formula: Sum) -> tuple[object, ...]:
    return tuple(
        (term.power, tuple((part.name, tuple(map(_outline, part.arguments))) for part in term.functions))
        for term in formula
    )


def _constants(formula: Sum) -> Iterator[np.ndarray]:
    """Give the constants of a formula and of the formulas within."""
    for term in formula:
        yield term.constant
        for part in term.functions:
            for inner in part.arguments:
                yield from _constants(inner)


def _written(value: np.ndarray) -> Argument:
    """Return a constant as an argument; of a number its shortest decimal in float32: 1.3, not 1.2999999523."""
    return value.astype(np.float32) if value.ndim else float(str(np.float32(value)))


def _spellings(entries: list[ActivationEntry], calls: Mapping[str, object]) -> list[_Spelling]:
    """Return the formulas of activations and calls, those with the fewest unknown arguments first."""
    named = [(entry.name, recipes) for entry in entries for _, recipes in cases(entry)]
    matched = [
        _Spelling(name, spelling, tuple(sorted(names_in(spelling.formula) - spelling.arguments.keys())))
        for name, recipes in [*named, *((name, CALLS[name]) for name in calls)]
        for spelling in recipes.spellings
    ]
    return sorted(matched, key=lambda spelling: len(spelling.unknown))


_OWN_SPELLINGS = _spellings(list(ENTRIES), CALLS)


def _operators(entries: list[ActivationEntry]) -> dict[str, tuple[str, OnnxOperator]]:
    """Return the operators that are an activation by themselves: what a call of torch.nn.functional becomes."""
    matched: dict[str, tuple[str, OnnxOperator]] = {}
    for entry in entries:
        for holder in (entry.onnx, *(recipes for _, recipes in cases(entry))):
            operator = getattr(holder, "operator", None)
            if operator is not None:
                matched.setdefault(operator.name, (entry.name, operator))
    return matched


_OWN_OPERATORS = _operators(list(ENTRIES))


class _Recogniser:
    """Knows the spellings of this package's activations, and of those that a registry holds beside them."""

    def __init__(self, registry: ActivationRegistry, *, sixteen_bit: bool = False) -> None:
        self._registry = registry
        self._dtypes = {*_FLOATS, *(_ROUNDINGS if sixteen_bit else ())}
        users = [entry for entry in registry.entries() if entry.onnx is not None and entry not in ENTRIES]
        self._operators = {**_operators(users), **_OWN_OPERATORS}
        of_users = _spellings(users, {})
        self._candidates = [*_OWN_SPELLINGS, *of_users]
        for candidate in of_users:
            try:
                candidate.probe  # noqa: B018 - kept from now on
            except NotAFormulaError:
                raise ArgumentError(
                    f"{candidate.name!r} was registered with the spelling {candidate.spelling.formula!r}, which cannot "
                    f"be recognised. Accepted are formulas of {', '.join(sorted(_WITHIN))}."
                ) from None

    def recognise(self, node: ir.Node) -> Recognised | None:
        """Return the activation that a node is the last of, and its input; ``None`` if it is none."""
        if node.domain not in {"", "ai.onnx"} or len(node.outputs) != 1:
            return None
        for x in _variables(node, self._dtypes):
            activation = self._formula_of(node, x)
            if activation is not None:
                return activation, x
        matched = self._operator(node)
        return matched if matched is not None and self._is_accepted(matched[0]) else None

    def _operator(self, node: ir.Node) -> Recognised | None:
        x = node.inputs[0] if node.inputs else None
        if x is None or node.op_type not in self._operators:
            return None
        name, operator = self._operators[node.op_type]
        arguments: dict[str, Argument | str] = {}
        for attribute, (argument, default) in operator.attributes.items():
            if (value := node.attributes.get(attribute)) is None:
                arguments[argument] = default
            else:
                is_text = value.type == ir.AttributeType.STRING
                arguments[argument] = value.as_string() if is_text else _written(np.asarray(value.as_float()))
        activation = bind_named(name, arguments, self._registry)
        return None if activation is None else (activation, x)

    def _formula_of(self, node: ir.Node, x: ir.Value) -> BoundActivation | None:
        """Return the activation of ``x`` that a node computes."""
        try:
            formula = expand(node.outputs[0], x, _DEPTH)
        except NotAFormulaError:
            return None
        rank = 0 if x.shape is None else len(x.shape)
        relative = _ROUNDINGS.get(x.dtype, RELATIVE) if x.dtype is not None else RELATIVE
        for candidate in self._candidates:
            arguments = candidate.arguments_in(formula, relative)
            if arguments is not None and all(np.ndim(value) <= rank for value in arguments.values()):
                activation = bind_named(candidate.name, arguments, self._registry)
                if activation is not None and self._is_accepted(activation):
                    return activation
        return None

    def resembling(self, node: ir.Node) -> tuple[str, ir.Value] | None:
        """Return the activation whose formula a node gives with other constants, and its input."""
        for x in _variables(node, self._dtypes):
            with contextlib.suppress(NotAFormulaError):
                formula = expand(node.outputs[0], x, _DEPTH)
                scalar = all(constant.ndim == 0 for constant in _constants(formula))
                for candidate in _OWN_SPELLINGS if scalar else ():  # not with a layer's scale
                    if candidate.name not in CALLS and candidate.resembles(formula):
                        return candidate.name, x
        return None

    def _is_accepted(self, activation: BoundActivation) -> bool:
        """Return whether an activation takes the arguments that a graph has: swish of a negative beta is none."""
        try:
            spec_text(activation, self._registry)
        except (ArgumentError, SpecError):  # the second for NaN
            return False
        return True


def spec_text(activation: BoundActivation, registry: ActivationRegistry) -> str:
    """Return the spec of an activation that surgery does not list: a call of a function, or a gate."""
    plain = {key: value for key, value in activation.arguments.items() if isinstance(value, (int, float, str))}
    plain.pop("channel_dim", None)
    candidate = built_in() if activation.in_table else registry
    if activation.name not in candidate:  # such as erfc, which is no activation
        return activation.name
    return str(candidate.resolve(ActivationSpec.of(activation.name, **plain)))


def recognise(model: ir.Model, registry: ActivationRegistry | None = None) -> list[tuple[ir.Node, str]]:
    """Return the activations that a graph computes: written out, as standard operators, or as onnxruntime's own.

    Args:
        model: A graph with shapes: what is written out is recognised between values of one shape. It stays as it is.
        registry: Whose activations are recognised beside this package's own; ``None`` is the default one.

    Returns:
        The node that gives each activation's output, and the activation's canonical spec, in the graph's order.

    Example:
        >>> import onnx
        >>> from onnx import helper, TensorProto
        >>> ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", "y")]
        >>> nodes = [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["y"])]
        >>> graph = helper.make_graph(nodes, "net", ports[:1], ports[1:])
        >>> model = onnx.shape_inference.infer_shapes(helper.make_model(graph))
        >>> [(node.op_type, spec) for node, spec in recognise(ir.from_proto(model))]
        [('Mul', 'silu')]
    """
    return [(entry.node, entry.spec) for entry in recognitions(model, registry) if entry.spec is not None]


@dataclass(frozen=True)
class Recognition:
    """An activation in a graph."""

    node: ir.Node  # that gives its output
    spec: str | None  # canonical; None for a formula with constants that are no registered activation's
    x: ir.Value  # its input
    name: str  # of the activation whose formula it is, whatever the constants

    @cached_property
    def nodes(self) -> list[ir.Node]:
        """The nodes between input and output, the last one first; of a formula those of its constants too."""
        nodes: dict[int, ir.Node] = {}
        waiting = [self.node]
        while waiting:
            node = waiting.pop()
            if id(node) not in nodes:
                nodes[id(node)] = node
                read = (value for value in node.inputs if value is not None and value is not self.x)
                # Of an operator that is the activation by itself, the other inputs are a bias or a slope.
                within = node is not self.node or node.op_type in _ROOTS
                waiting += [producer for value in read if within and (producer := value.producer()) is not None]
        return list(nodes.values())


def recognitions(model: ir.Model, registry: ActivationRegistry | None = None) -> list[Recognition]:
    """Return what `recognise` does, with inputs, and formulas that differ from a known one in their constants alone."""
    registry = registry_or_default(registry)
    nodes = list(ir.traversal.RecursiveGraphIterator(model.graph))
    unread: set[int] = set()
    for node in reversed(nodes):
        is_output = any(value.is_graph_output() for value in node.outputs)
        if not is_output and all(id(use.node) in unread for value in node.outputs for use in value.uses()):
            unread.add(id(node))
    nodes = [node for node in nodes if id(node) not in unread]
    entries = {
        id(node): Recognition(node, spec_text(activation, registry), x, activation.name)
        for node, activation, x in _matches(model, registry, sixteen_bit=True)
    }
    for node in nodes:
        with contextlib.suppress(LitGeluError):  # a registry without it, or a slope that it does not take
            if (spec := _contrib(node)) is not None and (x := node.inputs[0]) is not None:
                entries[id(node)] = Recognition(node, str(registry.resolve(spec)), x, spec.name)
    inside = {id(node) for entry in entries.values() for node in entry.nodes if node.op_type != "Constant"}
    recogniser = _Recogniser(registry, sixteen_bit=True)
    for node in reversed(nodes):  # the whole of a formula before its parts
        match = None if id(node) in inside else recogniser.resembling(node)
        if match is not None:
            entry = Recognition(node, None, match[1], match[0])
            within = {id(part) for part in entry.nodes if part.op_type != "Constant"}
            if inside.isdisjoint(within):
                entries[id(node)] = entry
                inside |= within
    return [entries[id(node)] for node in nodes if id(node) in entries and entries[id(node)].spec not in CALLS]


def _contrib(node: ir.Node) -> ActivationSpec | None:
    """Return the spec of an activation that is an operator of onnxruntime's own, if a node is that."""
    if node.domain != CONTRIB_DOMAIN:
        return None
    if node.op_type != "QuickGelu":
        return _CONTRIB.get(node.op_type)
    factor = node.attributes.get("alpha")
    alpha = _QUICK_ALPHA if factor is None else float(str(np.float32(factor.as_float())))
    if alpha == 1.0:
        return ActivationSpec("silu")
    is_quick = alpha == _QUICK_ALPHA
    return ActivationSpec.of("gelu", approximate="sigmoid") if is_quick else ActivationSpec.of("swish", beta=alpha)


def _matches(
    model: ir.Model, registry: ActivationRegistry, *, sixteen_bit: bool = False
) -> Iterator[tuple[ir.Node, BoundActivation, ir.Value]]:
    """Yield the last node, the activation and its input of all that is recognised, the last one first."""
    recogniser = _Recogniser(registry, sixteen_bit=sixteen_bit)
    dead: set[int] = set()  # nodes that nothing would read if what was recognised were one node
    inputs: set[int] = set()  # values that it would read
    for node in reversed(list(ir.traversal.RecursiveGraphIterator(model.graph))):
        read = any(value.is_graph_output() or id(value) in inputs for value in node.outputs)
        if not read and all(id(use.node) in dead for value in node.outputs for use in value.uses()):
            dead.add(id(node))
        elif (match := recogniser.recognise(node)) is not None:
            dead.add(id(node))
            inputs.add(id(match[1]))
            yield node, *match


def mark_spellings(model: ir.Model, registry: ActivationRegistry) -> dict[str, BoundActivation]:
    """Put a marker in the place of every activation that is not a module; return them by site, ``module:row``."""
    sites: dict[str, BoundActivation] = {}
    for node, activation, x in list(_matches(model, registry)):
        site = name = f"{calling_module(node)}:{activation.row}"
        others, values = 1, activation.arguments.items()
        while (there := sites.get(site)) and not all(np.array_equal(there.arguments.get(k, ""), v) for k, v in values):
            others += 1
            site = f"{name}#{others}"
        sites[site] = activation
        marker = ir.node(MARKER_OPERATOR, [x], attributes={"site": site}, domain=MARKER_DOMAIN)
        marker.metadata_props.update(node.metadata_props)
        before, after = node.outputs[0], marker.outputs[0]
        after.type, after.shape = before.type, before.shape
        convenience.replace_nodes_and_values(node.graph, node, [node], [marker], [before], [after])  # type: ignore[arg-type]
    return dict(reversed(list(sites.items())))


def calling_module(node: ir.Node) -> str:
    """Return the name of the module whose ``forward`` made a node; empty for the model itself."""
    scopes = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
    module: str = scopes[-2] if len(scopes) > 1 else ""
    return module.removeprefix(SCOPE).removeprefix(".")


def _cone(node: ir.Node) -> list[ir.Node]:
    """Return a node and what it is computed from, as far as formulas reach, nearest first."""
    cone, level = [node], [node]
    for _ in range(_DEPTH):
        producers = [v.producer() for inner in level for v in inner.inputs if v is not None]
        level = []
        for producer in producers:
            if producer is None or producer.op_type not in _WITHIN or any(producer is candidate for candidate in cone):
                continue
            cone.append(producer)
            level.append(producer)
        if not level or len(cone) > _LARGEST_CONE:
            break
    return cone


def _variables(node: ir.Node, dtypes: Container[ir.DataType | None]) -> Iterator[ir.Value]:
    """Give the values that a formula may be one of: those of the node's shape that its cone reads, nearest first."""
    cone = _cone(node) if node.op_type in _ROOTS and node.domain in {"", "ai.onnx"} else []
    shape, seen = node.outputs[0].shape, set()
    for inner in cone if any(inner.op_type in _NONLINEAR for inner in cone) else ():
        for value in inner.inputs:
            if value is None or id(value) in seen or constant_of(value) is not None:
                continue
            seen.add(id(value))
            if value.dtype in dtypes and value.shape == shape:
                yield value
