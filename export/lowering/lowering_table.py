"""Which ONNX operators each activation becomes: the recipes of all rows of the registry, and of calls without a row.

How a recipe is written: `lit_gelu.activations.onnx_recipes`. Three lowerings can have a recipe:

* ``native``: standard operators, the one that is the activation where opset 20 has it;
* ``primitives``: basic standard operators only, for runtimes that lack the native one;
* ``contrib``: onnxruntime's fused operators, for files that only onnxruntime will run.

A missing recipe means that the lowering has nothing of its own for this activation: ``native`` then takes the
primitives (SiLU and the sigmoid form of GELU have no operator at opset 20), and the other two take the native recipe
(``Relu`` is primitive already). `OnnxRecipes.applies` says whether a lowering has a recipe of its own.

A fourth column, ``accurate``, cannot be asked for by name: standard operators that neither cancel nor flush to 0, which
`lit_gelu.export.lowering.policy` takes where a 16-bit file must be right to the last place. It says too which column is
taken for which target, and where it is computed in float32 between two Casts.

Notes on single recipes stand beside them, in their families; these are on several:

* ``accurate`` for ELU, SELU and CELU is ``exp(m) - 1 = 2 t / (1 - t)`` with ``t = tanh(m / 2)``, which keeps its digits
  near 0; for SiLU and what has a sigmoid gate it is ``x / (1 + exp(-v))``, as PyTorch's own kernel computes it.
* ``erfc``, ``ndtr`` and ``log_ndtr`` are no activations but what calls of ``torch.special`` become. torch exports them
  as ``1 - Erf(x)`` and the like, which has no digits left where the result is small. Here they are made of
  ``t exp(p(t) - a^2)`` with ``t = 1 / (1 + a / 2)`` (Press et al. 1992, Numerical Recipes, section 6.2: relative error
  below 1.2e-7).
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.errors import UnknownArgumentsError
from lit_gelu.activations.families import ENTRIES
from lit_gelu.activations.modules import FunctionActivation
from lit_gelu.activations.naming.entry import ActivationEntry
from lit_gelu.activations.onnx_recipes import OnnxCases, OnnxRecipes, OnnxSpelling
from lit_gelu.export.lowering.recipe import Argument, user_row
from lit_gelu.surgery.recognition import hidden_modules

if TYPE_CHECKING:
    import numpy as np

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
        f"a = Mul(Abs(x), SQRT_HALF); {_ERFC_EXPONENT}e = Mul(Mul(t, 0.5), Exp(q)); "
        "Where(Less(x, 0.0), Add(Log(Mul(t, 0.5)), q), Log(Sub(1.0, e)))",
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


TABLE: Mapping[str, OnnxRecipes] = {**{row: own for entry in ENTRIES for row, own in cases(entry)}, **CALLS}
_CASES = {entry.name: entry.onnx.case for entry in ENTRIES if isinstance(entry.onnx, OnnxCases)}


@dataclass(frozen=True)
class BoundActivation:
    """An activation with its arguments as they are now.

    Args:
        name: Canonical name.
        row: Key of its row in the table; its name for one that is not in it.
        recipes: What it becomes: of the table, or as it was registered.
        arguments: Numbers and arrays by name; learned ones with their present values.
    """

    name: str
    row: str
    recipes: OnnxRecipes
    arguments: Mapping[str, Argument | str] = field(default_factory=dict)

    @property
    def in_table(self) -> bool:
        """Whether it is this package's own."""
        return TABLE.get(self.row) is self.recipes


def row_key(name: str, arguments: Mapping[str, object]) -> str | None:
    """Return the key of an activation's row in `TABLE`; ``None`` for one that it does not know, which torch exports."""
    case = _CASES[name](arguments) if name in _CASES else name
    return case if case in TABLE else None


def bound(name: str, arguments: Mapping[str, Argument | str]) -> BoundActivation | None:
    """Return this package's own activation of a name, if the table knows these arguments."""
    row = row_key(name, arguments)
    return None if row is None else BoundActivation(name, row, TABLE[row], arguments)


# Marks activations, so that each is exactly one node of the exported graph, whatever torch would make of it.
#
# Three ways to find an activation in a graph were tried. A translation table for ATen functions cannot express
# onnxruntime's fused operators and never sees a module such as Swish, which is three functions. Matching patterns in
# the graph breaks with every release of torch, and cannot tell a Sigmoid that is an activation from one within it. So
# the exporter is told: on the evaluation copy, ``forward`` of every known activation module is replaced by one call of
# ``torch.onnx.ops.symbolic``, which puts a node ``lit_gelu::Activation(x)`` with the site's name into the graph and
# leaves the module's type and attributes alone. The graph is exported once, and `lit_gelu.export.lowering.replace` then
# replaces each marker by the table's recipe, with the arguments as they were at export (learned ones included).
#
# Activations that the lowering table does not know are marked if they were registered with operators of their own
# (``register(..., onnx=...)``); else torch decomposes them.
MARKER_DOMAIN = "lit_gelu"
MARKER_OPERATOR = "Activation"


@functools.cache
def built_in() -> ActivationRegistry:
    """Return a registry of this package's own activations, whatever a user has registered under their names."""
    return ActivationRegistry()


def bind(module: nn.Module, registry: ActivationRegistry | None = None) -> BoundActivation | None:
    """Return the activation that a module is, with its present arguments; ``None`` if nothing says what it becomes."""
    entry = built_in().entry_of(module)
    if entry is not None and not (isinstance(module, FunctionActivation) and module.function is not entry.function):
        activation = bound(entry.name, _arguments(entry, module))
        if activation is not None:
            return activation
    entry = None if registry is None else registry.entry_of(module)
    if entry is None or entry.onnx is None:
        return None
    try:
        arguments = _arguments(entry, module)
    except UnknownArgumentsError:
        return None  # a recipe needs the arguments as they are now; torch decomposes the module as it is
    return _registered(entry, arguments)


def bind_named(
    name: str, arguments: Mapping[str, Argument | str], registry: ActivationRegistry | None
) -> BoundActivation | None:
    """Return the activation of a name and arguments, this package's own first."""
    own = bound(name, arguments)
    if own is not None or registry is None or name not in registry:
        return own
    entry = registry.entry(name)
    return _registered(entry, {**_defaults(entry), **arguments})


def _registered(entry: ActivationEntry, arguments: Mapping[str, Argument | str]) -> BoundActivation | None:
    """Return what a user registered, if these arguments are a case of it."""
    recipes = user_row(entry.name, entry.onnx, arguments)
    return None if recipes is None else BoundActivation(entry.name, entry.name, recipes, arguments)


def _defaults(entry: ActivationEntry) -> dict[str, Any]:
    """Return the defaults of an activation's arguments."""
    return {key: p.default for key, p in entry.parameters.items() if isinstance(p.default, (int, float, str))}


def _arguments(entry: ActivationEntry, module: nn.Module) -> dict[str, Argument | str]:
    """Return an activation's arguments as they are now."""
    form = entry.form_of(module)
    live = {**({} if form is None else form.read(module)), **(entry.live_arguments(module) or {})}
    return {key: _plain(value) for key, value in {**_defaults(entry), **live}.items() if key != "inplace"}


def _plain(value: object) -> Argument | str:
    """Return a tensor as an array, anything else as it is."""
    if isinstance(value, Tensor):
        array: np.ndarray = value.detach().cpu().numpy()
        return array
    return value  # type: ignore[return-value]


def mark(model: nn.Module, registry: ActivationRegistry | None = None) -> dict[str, BoundActivation]:
    """Mark every activation module of a copy of which it is known what it becomes; return them by first name."""
    # Branches of torch.cond are traced by dynamo, which refuses functions of torch.onnx unless told to take them as is.
    torch.compiler.allow_in_graph(torch.onnx.ops.symbolic)  # type: ignore[no-untyped-call]
    marked: dict[str, BoundActivation] = {}
    hidden = hidden_modules(model)
    for site, module in model.named_modules():
        bound = None if id(module) in hidden else bind(module, registry)
        if bound is not None:
            marked[site] = bound
            module.forward = functools.partial(_marked_forward, site, getattr(module, "inplace", False))
    return marked


def unmark(model: nn.Module, marked: Iterable[str]) -> None:
    """Let marked modules compute themselves again."""
    for site in marked:
        del model.get_submodule(site).forward


def _marked_forward(site: str, inplace: bool, *args: Tensor, **kwargs: Tensor) -> Tensor:
    """Stand for an activation while the exporter traces; its one input may be named, and is overwritten if in-place."""
    (x,) = (*args, *kwargs.values())
    y = torch.onnx.ops.symbolic(
        f"{MARKER_DOMAIN}::{MARKER_OPERATOR}", (x,), {"site": site}, dtype=x.dtype, shape=x.shape, version=1
    )
    return x.copy_(y) if inplace else y
