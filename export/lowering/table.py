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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from lit_gelu.activations.families import ENTRIES
from lit_gelu.activations.naming.entry import ActivationEntry
from lit_gelu.activations.onnx_recipes import OnnxCases, OnnxRecipes, OnnxSpelling
from lit_gelu.export.lowering.recipe import Argument

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
    recipes: OnnxRecipes | ir.Function
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
