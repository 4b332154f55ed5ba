"""Which ONNX operators each activation becomes: the recipes of all rows of the registry, and of calls without a row.

How a recipe is written: `lit_gelu.activations.onnx_recipes`. Three lowerings can have a recipe: ``native`` (standard
operators, the one that is the activation where opset 20 has it), ``primitives`` (basic standard operators only) and
``contrib`` (onnxruntime's fused ones). Where one is missing, ``native`` takes the primitives, the others the native
recipe. A fourth column, ``accurate``, cannot be asked for by name: standard operators that neither cancel nor flush to
0, which `lit_gelu.export.lowering.policy` takes where a 16-bit file must be right to the last place.

Notes on single recipes stand beside them, in their families; these are on several:

* ``accurate`` for ELU, SELU and CELU is ``exp(m) - 1 = 2 t / (1 - t)`` with ``t = tanh(m / 2)``, which keeps its digits
  near 0; for SiLU and what has a sigmoid gate it is ``x / (1 + exp(-v))``, as PyTorch's own kernel computes it.
* ``erfc``, ``ndtr`` and ``log_ndtr`` are no activations but what calls of ``torch.special`` become. torch exports them
  as ``1 - Erf(x)`` and the like, which has no digits left where the result is small. Here they are made of
  ``t exp(p(t) - a^2)`` with ``t = 1 / (1 + a / 2)`` (Press et al. 1992, Numerical Recipes, section 6.2: relative error
  below 1.2e-7).
"""

import ast
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.families import ENTRIES
from lit_gelu.activations.modules import FunctionActivation
from lit_gelu.activations.naming.entry import ActivationEntry
from lit_gelu.activations.naming.names import Names
from lit_gelu.activations.onnx_recipes import Lowering, OnnxCases, OnnxRecipes, OnnxSpelling
from lit_gelu.errors import ArgumentError, SpecError, shown
from lit_gelu.kernels import is_fused
from lit_gelu.surgery.sites import hidden_modules

CONTRIB_DOMAIN = "com.microsoft"
CONSTANTS: Mapping[str, float] = {
    "SQRT_2": math.sqrt(2.0),
    "SQRT_HALF": math.sqrt(0.5),
    "SQRT_2_OVER_PI": math.sqrt(2.0 / math.pi),
    "ONE_SIXTH": 1.0 / 6.0,
    "ONE_OVER_PI": 1.0 / math.pi,
    "HALF_PI": math.pi / 2.0,
    "SELU_ALPHA": 1.6732632423543772848170429916717,
    "SELU_SCALE": 1.0507009873554804934193349852946,
}

Argument = float | np.ndarray


def recipe_texts(recipes: OnnxRecipes) -> tuple[str, ...]:
    """Return the recipes that there are."""
    texts = (recipes.native, recipes.primitives, recipes.contrib, recipes.accurate)
    return tuple(text for text in texts if text is not None)


def recipe_of(recipes: OnnxRecipes, lowering: Lowering) -> tuple[Lowering, str]:
    """Return the recipe that a lowering takes, and whose it is."""
    order: tuple[Lowering, ...] = (lowering, "native", "primitives")
    return next((name, text) for name in order if (text := getattr(recipes, name)) is not None)


@cache
def operators(recipe: str) -> tuple[str, ...]:
    """Return the operators of a recipe in the order of the nodes, ``domain::Name`` for those that are not standard."""
    results: list[str] = []

    def visit(node: ast.expr) -> None:
        if isinstance(node, ast.Call):
            for argument in node.args:
                visit(argument)
            domain, name = _operator(node.func)
            results.append(f"{domain}::{name}" if domain else name)

    for _, value in _statements(recipe):
        visit(value)
    return tuple(results)


def names_in(recipe: str) -> set[str]:
    """Return the arguments that a recipe mentions: no ``x``, operators, names that it assigns, constants."""
    statements = _statements(recipe)
    nodes = [node for _, value in statements for node in ast.walk(value)]
    functions = {id(part) for node in nodes if isinstance(node, ast.Call) for part in ast.walk(node.func)}
    names = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in functions}
    return names - {name for name, _ in statements} - CONSTANTS.keys() - {"x"}


class RecipeBuilder:
    """Builds the nodes of one recipe; ``constant`` makes an initializer from an array and a hint for its name."""

    def __init__(
        self, x: ir.Value, arguments: Mapping[str, Argument], constant: Callable[[np.ndarray, str], ir.Value]
    ) -> None:
        self._names = {"x": x}
        self._arguments = {**CONSTANTS, **arguments}
        self._constant = constant
        self.nodes: list[ir.Node] = []

    def build(self, recipe: str) -> ir.Value:
        """Build the nodes, inner ones first, into ``nodes``; return the value of the last."""
        result = self._names["x"]
        for name, value in _statements(recipe):
            result = self._names[name] = self._value(value)
        return result

    def _value(self, node: ast.expr) -> ir.Value:
        """Return the value that an expression stands for; nodes are made on the way."""
        if isinstance(node, ast.Call):
            domain, name = _operator(node.func)
            inputs = [self._value(argument) for argument in node.args]
            attributes = {k.arg or "": self._attribute("" if domain else name, k) for k in node.keywords}
            self.nodes.append(ir.node(name, inputs, attributes=attributes, domain=domain))
            return self.nodes[-1].outputs[0]
        if isinstance(node, ast.Name) and node.id in self._names:
            return self._names[node.id]
        hint = node.id.lower() if isinstance(node, ast.Name) else "constant"
        return self._constant(np.asarray(self._plain(node), dtype=np.float64), hint)

    def _attribute(self, operator: str, keyword: ast.keyword) -> float | str:
        value = self._plain(keyword.value)
        if isinstance(value, str):
            return value
        number = float(np.asarray(value).item())
        attributes = onnx.defs.get_schema(operator).attributes if onnx.defs.has(operator) else {}
        is_whole = keyword.arg in attributes and attributes[keyword.arg].type == onnx.defs.OpSchema.AttrType.INT
        if not is_whole or math.isnan(number):  # which stands for an argument whose value is not there
            return number
        if not number.is_integer():
            raise ValueError(f"{ast.unparse(keyword)} is no whole number, which {operator} takes there")
        return int(number)

    def _plain(self, node: ast.expr) -> Argument | str:
        if isinstance(node, ast.Name):
            return self._arguments[node.id]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return np.multiply(self._plain(node.left), self._plain(node.right), dtype=np.float64)
        value: float | str = ast.literal_eval(node)
        return value


@cache
def _statements(recipe: str) -> tuple[tuple[str, ast.expr], ...]:
    """Parse a recipe: expressions, each with the name that it gets, or none."""
    statements = []
    for statement in ast.parse(recipe).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                statements.append((name, value))
            case ast.Expr(value=value):
                statements.append(("", value))
            case _:
                raise TypeError(f"a recipe is made of assignments and expressions, not {ast.dump(statement)}")
    return tuple(statements)


def _operator(function: ast.expr) -> tuple[str, str]:
    match function:
        case ast.Name(id=name):
            return "", name
        case ast.Attribute(value=ast.Name(id="microsoft"), attr=name):
            return CONTRIB_DOMAIN, name
    raise TypeError(f"no operator: {ast.unparse(function)}")


class Constants:
    """Initializers of a graph for constants; equal ones are shared."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self._values: dict[tuple[bytes, str, tuple[int, ...]], ir.Value] = {}

    def value(self, array: np.ndarray, hint: str) -> ir.Value:
        """Return the initializer that holds an array; its name has the hint in it."""
        key = (array.tobytes(), str(array.dtype), array.shape)
        if key not in self._values:
            name = f"lit_gelu.{hint}_{len(self._values)}"
            while name in self.graph.initializers:
                name += "_"
            self._values[key] = ir.val(name, const_value=ir.tensor(array, name=name))
            self.graph.register_initializer(self._values[key])
        return self._values[key]

    def floats(self, dtype: ir.DataType) -> Callable[[np.ndarray, str], ir.Value]:
        """Return a function that makes initializers of a floating-point dtype."""
        return lambda array, hint: self.value(array.astype(np.float32).astype(dtype.numpy()), hint)

    def integers(self, *numbers: int) -> ir.Value:
        """Return a vector of whole numbers."""
        return self.value(np.array(numbers, np.int64), "integers")


_ERFC_EXPONENT = (  # of exp, for a >= 0, so that erfc(a) = t exp(...)
    "t = Div(1.0, Add(Mul(a, 0.5), 1.0)); "
    "p = Add(Mul(t, Add(Mul(t, Add(Mul(t, Add(Mul(t, Add(Mul(t, Add(Mul(t, Add(Mul(t, Add(Mul(t, Add(Mul(t, "
    "0.17087277), -0.82215223)), 1.48851587)), -1.13520398)), 0.27886807)), -0.18628806)), 0.09678418)), "
    "0.37409196)), 1.00002368)), -1.26551223); q = Sub(p, Mul(a, a)); "
)
_NDTR = "Mul(Add(Erf(Mul(x, SQRT_HALF)), 1.0), 0.5)"


def _call(recipe: str, spelling: str) -> OnnxRecipes:
    """Return the row of a call; its polynomial of degree 9 is computed in float32 in every 16-bit file."""
    return OnnxRecipes(native=recipe, policy={"* fp16|bf16 *": "fp32 native"}, spellings=(OnnxSpelling(spelling),))


CALLS: Mapping[str, OnnxRecipes] = {
    "erfc": _call(
        f"a = Abs(x); {_ERFC_EXPONENT}e = Mul(t, Exp(q)); Where(Less(x, 0.0), Sub(2.0, e), e)", "Sub(1.0, Erf(x))"
    ),
    "ndtr": _call(
        f"a = Mul(Abs(x), SQRT_HALF); {_ERFC_EXPONENT}e = Mul(Mul(t, 0.5), Exp(q)); "
        "Where(Less(x, 0.0), e, Sub(1.0, e))",
        _NDTR,
    ),
    "log_ndtr": _call(
        # Of x > 0 the logarithm of 1 - e: Kahan's log1p, since 1 - e has no digits of a small e.
        f"a = Mul(Abs(x), SQRT_HALF); {_ERFC_EXPONENT}e = Mul(Mul(t, 0.5), Exp(q)); u = Sub(1.0, e); "
        "Where(Less(x, 0.0), Add(Log(Mul(t, 0.5)), q), "
        "Where(Less(u, 1.0), Mul(Log(u), Div(e, Sub(1.0, u))), Neg(e)))",
        # torch: Where(x < 1, Log(erfcx(-z) / 2) - z^2, Log(1 - erfc(z) / 2)), with z = x / sqrt(2)
        f"h = {_NDTR}; s = Mul(Mul(x, x), 0.5); Where(Less(x, 1.0), Sub(Log(Mul(Exp(s), h)), s), Log(h))",
    ),
}


def cases(entry: ActivationEntry) -> Iterator[tuple[str, OnnxRecipes]]:
    """Give the recipes of every case of an activation."""
    if isinstance(entry.onnx, OnnxCases):
        yield from entry.onnx.recipes.items()
    elif isinstance(entry.onnx, OnnxRecipes):
        yield entry.name, entry.onnx


TABLE: Mapping[str, OnnxRecipes] = {**{row: recipes for entry in ENTRIES for row, recipes in cases(entry)}, **CALLS}
_CASES = {entry.name: entry.onnx.case for entry in ENTRIES if isinstance(entry.onnx, OnnxCases)}


@dataclass(frozen=True)
class BoundActivation:
    """An activation with its arguments as they are now."""

    name: str  # canonical
    row: str  # key of its row in the table; its name for one that is not in it
    recipes: OnnxRecipes  # what it becomes: of the table, or as it was registered
    arguments: Mapping[str, Argument | str] = field(default_factory=dict)  # learned ones with their present values

    @property
    def in_table(self) -> bool:
        """Whether it is this package's own."""
        return TABLE.get(self.row) is self.recipes


def row_key(name: str, arguments: Mapping[str, object]) -> str | None:
    """Return the key of an activation's row in `TABLE`; ``None`` for one that it does not know, which torch exports."""
    case = _CASES[name](arguments) if name in _CASES else name
    return case if case in TABLE else None


# On the evaluation copy, ``forward`` of every known activation module is one call of ``torch.onnx.ops.symbolic``, which
# puts a node ``lit_gelu::Activation(x)`` with the site's name into the graph, whatever torch would make of the module;
# `lit_gelu.export.lowering.replace` puts recipes in their place. A translation table for ATen functions can neither
# express onnxruntime's operators nor see a module such as Swish, which is three functions; patterns in the graph break
# with releases of torch, and cannot tell a Sigmoid that is an activation from one within it.
MARKER_DOMAIN = "lit_gelu"
MARKER_OPERATOR = "Activation"


@cache
def built_in() -> Names:
    """Return the names of this package's own activations, whatever a user has registered under them."""
    return Names(ENTRIES)


def bind(module: nn.Module, registry: ActivationRegistry | None = None) -> BoundActivation | None:
    """Return the activation that a module is, with its present arguments; ``None`` if nothing says what it becomes."""
    entry = built_in().entry_of(module)
    if entry is not None and not (isinstance(module, FunctionActivation) and module.function is not entry.function):
        arguments = _arguments(entry, module)
        if (row := row_key(entry.name, arguments)) is not None:
            return BoundActivation(entry.name, row, TABLE[row], arguments)
    entry = None if registry is None else registry.entry_of(module)
    if entry is None or entry.onnx is None:
        return None
    try:
        return _registered(entry, _arguments(entry, module))
    except SpecError:
        return None  # a recipe needs the arguments as they are now; torch decomposes the module as it is


def bind_named(
    name: str, arguments: Mapping[str, Argument | str], registry: ActivationRegistry | None
) -> BoundActivation | None:
    """Return the activation of a name and arguments, this package's own first."""
    if (row := row_key(name, arguments)) is not None:
        return BoundActivation(name, row, TABLE[row], arguments)
    if registry is None or name not in registry:
        return None
    entry = registry.entry(name)
    return _registered(entry, {**_defaults(entry), **arguments})


def _registered(entry: ActivationEntry, arguments: Mapping[str, Any]) -> BoundActivation | None:
    """Return what a user registered, if these arguments are a case of it."""
    recipes: Any = entry.onnx
    if isinstance(recipes, OnnxCases):
        case = recipes.case(arguments)
        recipes = None if case is None else recipes.recipes.get(case, case)
    if recipes is None:
        return None
    recipes = OnnxRecipes(native=recipes) if isinstance(recipes, str) and recipes is entry.onnx else recipes
    if not isinstance(recipes, OnnxRecipes) or (recipes.native is None and recipes.primitives is None):
        raise ArgumentError(
            f"{entry.name!r} was registered with onnx={shown(entry.onnx)}. Accepted: a recipe 'Mul(x, Sigmoid(x))', "
            "OnnxRecipes with native= or primitives=, or OnnxCases of them, whose case is one of its keys or None."
        )
    for recipe in (*recipe_texts(recipes), *(spelling.formula for spelling in recipes.spellings)):
        builder = RecipeBuilder(ir.Value(name="x"), arguments, lambda _, hint: ir.Value(name=hint))
        try:
            result = builder.build(recipe)
            unknown = [name for name in operators(recipe) if "::" not in name and not onnx.defs.has(name)]
            read = {id(value) for value in (result, *(value for node in builder.nodes for value in node.inputs))}
            unread = [node.op_type for node in builder.nodes if id(node.outputs[0]) not in read]
            problem = f"ONNX has no operator {unknown[0]}" if unknown else "" if builder.nodes else "it has no operator"
            problem = f"nothing reads its {unread[0]}" if unread else problem
        except (KeyError, SyntaxError, TypeError, ValueError) as error:
            is_argument = isinstance(error, KeyError)
            problem = f"the activation has no argument {error}" if is_argument else str(error)
        if problem:
            raise ArgumentError(
                f"the recipe that {entry.name!r} was registered with cannot be read: {recipe!r} ({problem}). Accepted: "
                "operators within each other, such as 'Mul(x, Sigmoid(x))', onnxruntime's own as microsoft.Name."
            )
    return BoundActivation(entry.name, entry.name, recipes, arguments)


def _defaults(entry: ActivationEntry) -> dict[str, Any]:
    return {key: p.default for key, p in entry.parameters.items() if isinstance(p.default, (int, float, str))}


def _arguments(entry: ActivationEntry, module: nn.Module) -> dict[str, Any]:
    form = entry.form_of(module)
    # Of a class of the user's they may be unknown after training: then the recipe is no use, as `SpecError` says.
    present = form.live_arguments(module) if form is not None and form.noted else entry.live_arguments(module)
    live = {**({} if form is None else form.arguments(module)), **(present or {})}
    values = {key: value for key, value in {**_defaults(entry), **live}.items() if key != "inplace"}
    return {k: v.detach().cpu().numpy() if isinstance(v, Tensor) else v for k, v in values.items()}


def mark(model: nn.Module, registry: ActivationRegistry | None = None) -> dict[str, BoundActivation]:
    """Mark each activation module of the copied model that has a recipe; return them by site, its first name."""
    # Branches of torch.cond are traced by dynamo, which refuses functions of torch.onnx unless told to take them as is.
    torch.compiler.allow_in_graph(torch.onnx.ops.symbolic)  # type: ignore[no-untyped-call]
    marked: dict[str, BoundActivation] = {}
    hidden = hidden_modules(model)
    for site, module in model.named_modules():
        is_replaced = "forward" in vars(module) and not is_fused(module)
        bound = None if id(module) in hidden or is_replaced else bind(module, registry)
        if bound is not None:
            marked[site] = bound
            module.forward = partial(_marked_forward, module.forward, site)
    return marked


def unmark(model: nn.Module, marked: Iterable[str]) -> None:
    """Let marked modules compute themselves again."""
    for site in marked:
        del model.get_submodule(site).forward


def _marked_forward(forward: Callable[..., Any], site: str, *args: Tensor, **kwargs: Tensor) -> Any:
    """Stand for an activation while the exporter traces; its one input may be named, and is overwritten if in-place."""
    x, *others = (*args, *kwargs.values())
    if others or torch._C._are_functorch_transforms_active():  # vmap and jvp have no rule for a stand-in
        return forward(*args, **kwargs)
    y = torch.onnx.ops.symbolic(
        f"{MARKER_DOMAIN}::{MARKER_OPERATOR}", (x,), {"site": site}, dtype=x.dtype, shape=x.shape, version=1
    )
    return x.copy_(y) if getattr(getattr(forward, "__self__", None), "inplace", False) else y
