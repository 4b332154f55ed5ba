"""Which ONNX operators each activation becomes. This table is the documentation and the program: nothing else decides.

A recipe is written as the graph it stands for. ``Mul(x, Sigmoid(Mul(x, 1.702)))`` is three nodes: ``Mul``, ``Sigmoid``,
``Mul`` (inner nodes first). ``x`` is the activation's input; other lower-case names are the activation's arguments with
the values they have at export; numbers and names in capitals are constants, ``a * b`` of them one constant; keywords
are node attributes; ``name = ...;``
gives an intermediate result a name. Operators are standard ones unless they are written ``microsoft.NAME``, which is
the domain ``com.microsoft`` that only onnxruntime knows.

Three lowerings can have a recipe:

* ``native``: standard operators, the one that is the activation where opset 20 has it;
* ``primitives``: basic standard operators only, for runtimes that lack the native one;
* ``contrib``: onnxruntime's fused operators, for files that only onnxruntime will run.

A missing recipe means that the lowering has nothing of its own for this activation: ``native`` then takes the
primitives (SiLU and the sigmoid form of GELU have no operator at opset 20), and the other two take the native recipe
(``Relu`` is primitive already). `applies` says whether a lowering has a recipe of its own.

A fourth column, ``accurate``, cannot be asked for by name: standard operators that neither cancel nor flush to 0, which
`lit_gelu.export.lowering.policy` takes where a 16-bit file must be right to the last place. That table says which
column is taken for which target, dtype and policy, and where it is computed in float32 between two Casts.

Notes on single rows:

* GELU's primitives stand in the order ``Mul(x, 0.5) Div Erf Add Mul``, which onnxruntime fuses again to one ``Gelu``.
  torch's own order at opsets 18 and 19 is not fused and runs 2 to 3 times slower.
* GELU's tanh form in primitives is in the order that onnxruntime fuses to ``FastGelu``, 3 times faster, but where its
  result is the graph's output. onnxruntime 1.31 cannot load such a file if the same ``x`` is multiplied by 0.5
  elsewhere too: it merges the two products, and the fusion then removes the one that is still used. Such a model needs
  another lowering, or a session without that optimisation.
* ``gaussian_gelu`` with mean 0 is ``sigma Gelu(x / sigma)``: one fused node instead of five, for one sigma a channel
  too. It overflows where x / sigma does: for sigma < 1 above sigma times the dtype's largest number. So does PyTorch's
  kernel for fixed numbers, but not for learned ones: ``sigma<1`` is a row of its own, in pieces where that matters.
  With sigma 1 it is GELU, whose row it takes.
* Mish's primitives are ``x n / (n + 2)`` with ``n = e (e + 2)``, ``e = exp(min(x, 20))``: the same function,
  ``tanh(log(1 + e^x))`` written as a quotient, without a cancelling logarithm. Above 20 the quotient is 1 to float32's
  last bit.
* ``log_sigmoid`` is ``-Softplus(-x)``. torch's own export, ``Log(Sigmoid(x))``, is -inf below x = -17 in onnxruntime,
  whose Sigmoid reaches 0 there.
* ``sqrt_softplus`` has no primitives: where ``Log(1 + e)`` has lost e, its root is still 2e-4.
* The Cauchy case of ``cdf_linear`` is ``atan(-1 / x)`` left of -1: ``pi / 2 + atan(x)`` has no digits left there, and
  ``x`` times it would be wrong in the first.
* ``accurate`` for ELU, SELU and CELU is ``exp(m) - 1 = 2 t / (1 - t)`` with ``t = tanh(m / 2)``, which keeps its digits
  near 0; for SiLU and what has a sigmoid gate it is ``x / (1 + exp(-v))``, as PyTorch's own kernel computes it.
* ``erfc``, ``ndtr`` and ``log_ndtr`` are no activations but what calls of ``torch.special`` become. torch exports them
  as ``1 - Erf(x)`` and the like, which has no digits left where the result is small. Here they are made of
  ``t exp(p(t) - a^2)`` with ``t = 1 / (1 + a / 2)`` (Press et al. 1992, Numerical Recipes, section 6.2: relative error
  below 1.2e-7).
* ELU, SELU and CELU's primitives subtract 1 from an exponential, so their relative error grows near 0 (the absolute
  error stays below one unit in the last place of 1); so does that of onnxruntime's own kernels.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

Lowering = Literal["native", "primitives", "contrib"]
LOWERINGS: tuple[Lowering, ...] = ("native", "primitives", "contrib")

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


@dataclass(frozen=True)
class Row:
    """The recipes of one activation (of one case of it, where its arguments decide).

    Args:
        native: Recipe in standard operators, with the activation's own operator.
        primitives: Recipe in basic standard operators.
        contrib: Recipe with onnxruntime's fused operators.
        accurate: Recipe in standard operators without cancellation.
    """

    native: str | None = None
    primitives: str | None = None
    contrib: str | None = None
    accurate: str | None = None

    def applies(self, lowering: Lowering) -> bool:
        """Return whether a lowering has a recipe of its own here; ``native`` always has one to take.

        Args:
            lowering: Which lowering.

        Returns:
            Whether choosing it means something for this activation.
        """
        return lowering == "native" or getattr(self, lowering) is not None

    def recipe(self, lowering: Lowering) -> tuple[Lowering, str]:
        """Return the recipe that a lowering takes, and whose it is.

        Args:
            lowering: Which lowering is wanted.

        Returns:
            The lowering that provides the recipe, and the recipe.

        Raises:
            LookupError: If the row is empty.

        Example:
            >>> TABLE["silu"].recipe("native")
            ('primitives', 'Mul(x, Sigmoid(x))')
        """
        order: tuple[Lowering, ...] = (lowering, "native", "primitives")
        for name in order:
            recipe: str | None = getattr(self, name)
            if recipe is not None:
                return name, recipe
        raise LookupError("a row of the lowering table has no recipe")


_EXACT_GELU = Row(
    native="Gelu(x, approximate='none')",
    primitives="Mul(Mul(x, 0.5), Add(Erf(Div(x, SQRT_2)), 1.0))",
    contrib="microsoft.Gelu(x)",
)
_SILU = Row(
    primitives="Mul(x, Sigmoid(x))",
    contrib="microsoft.QuickGelu(x, alpha=1.0)",
    accurate="Div(x, Add(Exp(Neg(x)), 1.0))",
)
_SWISH = "Mul(x, Sigmoid(Mul(x, beta)))"
_STABLE_SWISH = "Div(x, Add(Exp(Mul(x, beta * -1.0)), 1.0))"
_ERFC_EXPONENT = (  # of exp, for a >= 0, so that erfc(a) = t exp(...)
    "t = Div(1.0, Add(Mul(a, 0.5), 1.0)); "
    "p = Add(Mul(t, Add(Mul(t, Add(Mul(t, Add(Mul(t, Add(Mul(t, Add(Mul(t, Add(Mul(t, Add(Mul(t, Add(Mul(t, "
    "0.17087277), -0.82215223)), 1.48851587)), -1.13520398)), 0.27886807)), -0.18628806)), 0.09678418)), "
    "0.37409196)), 1.00002368)), -1.26551223); q = Sub(p, Mul(a, a)); "
)

TABLE: Mapping[str, Row] = {
    "gelu(approximate='none')": _EXACT_GELU,
    "gelu(approximate='tanh')": Row(
        native="Gelu(x, approximate='tanh')",
        primitives="Mul(Mul(x, 0.5), Add(Tanh(Mul(Add(x, Mul(Pow(x, 3.0), 0.044715)), SQRT_2_OVER_PI)), 1.0))",
        contrib="microsoft.FastGelu(x)",
    ),
    "gelu(approximate='sigmoid')": Row(
        primitives="Mul(x, Sigmoid(Mul(x, 1.702)))",
        contrib="microsoft.QuickGelu(x, alpha=1.702)",
        accurate="Div(x, Add(Exp(Mul(x, -1.702)), 1.0))",
    ),
    "zero_identity_map(gate='normal')": _EXACT_GELU,  # in evaluation the map is its expectation
    "zero_identity_map(gate='logistic')": _SILU,
    "gaussian_gelu(mu=0)": Row(
        native="Mul(Gelu(Div(x, sigma), approximate='none'), sigma)",
        primitives="Mul(Mul(x, 0.5), Add(Erf(Div(x, sigma * SQRT_2)), 1.0))",
        contrib="Mul(microsoft.Gelu(Div(x, sigma)), sigma)",
    ),
    "gaussian_gelu(mu=0, sigma<1)": Row(primitives="Mul(Mul(x, 0.5), Add(Erf(Div(x, sigma * SQRT_2)), 1.0))"),
    "gaussian_gelu": Row(primitives="Mul(Mul(x, 0.5), Add(Erf(Div(Sub(x, mu), sigma * SQRT_2)), 1.0))"),
    "silu": _SILU,
    "swish": Row(primitives=_SWISH, contrib="microsoft.QuickGelu(x, alpha=beta)", accurate=_STABLE_SWISH),
    "swish(channels)": Row(primitives=_SWISH, accurate=_STABLE_SWISH),
    "cdf_linear(distribution='normal')": _EXACT_GELU,
    "cdf_linear(distribution='logistic')": _SILU,
    "cdf_linear(distribution='cauchy')": Row(
        primitives="l = Min(x, -1.0); Mul(Mul(x, ONE_OVER_PI), "
        "Where(Less(x, -1.0), Neg(Atan(Div(1.0, l))), Add(Atan(x), HALF_PI)))",
    ),
    "cdf_linear(distribution='laplace')": Row(
        primitives="t = Mul(Mul(x, 0.5), Exp(Neg(Abs(x)))); Where(Less(x, 0.0), t, Sub(x, t))",
    ),
    "hard_swish": Row(
        native="HardSwish(x)",
        primitives="Mul(x, Clip(Add(Mul(x, ONE_SIXTH), 0.5), 0.0, 1.0))",
    ),
    "mish": Row(
        native="Mish(x)",
        primitives="e = Exp(Min(x, 20.0)); n = Mul(e, Add(e, 2.0)); Mul(x, Div(n, Add(n, 2.0)))",
    ),
    "relu": Row(native="Relu(x)"),
    "relu6": Row(native="Clip(x, 0.0, 6.0)"),
    "relu2": Row(native="r = Relu(x); Mul(r, r)"),
    "leaky_relu": Row(
        native="LeakyRelu(x, alpha=negative_slope)",
        primitives="Add(Relu(x), Mul(Min(x, 0.0), negative_slope))",
    ),
    "prelu": Row(
        native="PRelu(x, weight)",
        primitives="Add(Relu(x), Mul(Min(x, 0.0), weight))",
    ),
    "elu": Row(
        native="Elu(x, alpha=alpha)",
        primitives="Add(Relu(x), Mul(Sub(Exp(Min(x, 0.0)), 1.0), alpha))",
        accurate="t = Tanh(Mul(Min(x, 0.0), 0.5)); Add(Relu(x), Mul(Div(t, Sub(1.0, t)), alpha * 2.0))",
    ),
    "selu": Row(
        native="Selu(x, alpha=SELU_ALPHA, gamma=SELU_SCALE)",
        primitives="Mul(Add(Relu(x), Mul(Sub(Exp(Min(x, 0.0)), 1.0), SELU_ALPHA)), SELU_SCALE)",
        accurate="t = Tanh(Mul(Min(x, 0.0), 0.5)); "
        "Mul(Add(Relu(x), Mul(Div(t, Sub(1.0, t)), SELU_ALPHA * 2.0)), SELU_SCALE)",
    ),
    "celu": Row(
        native="Celu(x, alpha=alpha)",
        primitives="Add(Relu(x), Mul(Sub(Exp(Div(Min(x, 0.0), alpha)), 1.0), alpha))",
        accurate="t = Tanh(Div(Min(x, 0.0), alpha * 2.0)); Add(Relu(x), Mul(Div(t, Sub(1.0, t)), alpha * 2.0))",
    ),
    "sigmoid": Row(native="Sigmoid(x)", accurate="Div(1.0, Add(Exp(Neg(x)), 1.0))"),
    "tanh": Row(native="Tanh(x)"),
    "hard_sigmoid": Row(
        native="HardSigmoid(x, alpha=ONE_SIXTH, beta=0.5)",
        primitives="Clip(Add(Mul(x, ONE_SIXTH), 0.5), 0.0, 1.0)",
    ),
    "softplus(beta=1)": Row(
        native="Softplus(x)",
        primitives="Add(Relu(x), Log(Add(Exp(Neg(Abs(x))), 1.0)))",
    ),
    "softplus": Row(
        native="s = Mul(x, beta); Where(Greater(s, threshold), x, Div(Softplus(s), beta))",
        primitives="s = Mul(x, beta); "
        "Where(Greater(s, threshold), x, Div(Add(Relu(s), Log(Add(Exp(Neg(Abs(s))), 1.0))), beta))",
    ),
    "log_sigmoid": Row(
        native="Neg(Softplus(Neg(x)))",
        primitives="Sub(Min(x, 0.0), Log(Add(Exp(Neg(Abs(x))), 1.0)))",
    ),
    "hard_mish": Row(native="Mul(Mul(x, 0.5), Clip(Add(x, 2.0), 0.0, 2.0))"),
    "clipped_gelu": Row(
        native="Clip(Gelu(x, approximate='none'), min, max)",
        primitives="Clip(Mul(Mul(x, 0.5), Add(Erf(Div(x, SQRT_2)), 1.0)), min, max)",
        contrib="Clip(microsoft.Gelu(x), min, max)",
    ),
    "mega_laplace": Row(native="Mul(Add(Erf(Div(Sub(x, mu), sigma * SQRT_2)), 1.0), 0.5)"),
    "sqrt_softplus": Row(native="Sqrt(Softplus(x))"),
    "xielu": Row(
        native="r = Relu(x); l = Min(x, 0.0); Add(Mul(Add(Mul(r, alpha_p), beta), r), "
        "Add(Mul(Sub(Sub(Exp(l), 1.0), l), alpha_n), Mul(l, beta)))",
    ),
    "erfc": Row(
        native=f"a = Abs(x); {_ERFC_EXPONENT}e = Mul(t, Exp(q)); Where(Less(x, 0.0), Sub(2.0, e), e)",
    ),
    "ndtr": Row(
        native=f"a = Mul(Abs(x), SQRT_HALF); {_ERFC_EXPONENT}e = Mul(Mul(t, 0.5), Exp(q)); "
        "Where(Less(x, 0.0), e, Sub(1.0, e))",
    ),
    "log_ndtr": Row(
        native=f"a = Mul(Abs(x), SQRT_HALF); {_ERFC_EXPONENT}e = Mul(Mul(t, 0.5), Exp(q)); "
        "Where(Less(x, 0.0), Add(Log(Mul(t, 0.5)), q), Log(Sub(1.0, e)))",
    ),
}


def row_key(name: str, arguments: Mapping[str, object]) -> str | None:
    """Return the key of an activation's row in `TABLE`.

    Args:
        name: Canonical name of the activation.
        arguments: Its arguments with the values they have now.

    Returns:
        The key, or ``None`` for an activation that the table does not know: torch's own decomposition is exported then.

    Example:
        >>> row_key("gaussian_gelu", {"mu": 0.0, "sigma": 2.0})
        'gaussian_gelu(mu=0)'
        >>> row_key("somebodys_own", {}) is None
        True
    """
    if name == "gelu":
        name = f"gelu(approximate={arguments.get('approximate', 'none')!r})"
    elif name == "zero_identity_map":
        # One that draws in evaluation too has no row: torch decomposes it, and the export refuses the random numbers.
        drawn = arguments.get("evaluation", "expectation") != "expectation"
        name = "" if drawn else f"zero_identity_map(gate={arguments.get('gate', 'normal')!r})"
    elif name == "cdf_linear":
        name = f"cdf_linear(distribution={arguments.get('distribution', 'normal')!r})"
    elif name == "swish" and np.ndim(arguments.get("beta", 1.0)) > 0:  # type: ignore[arg-type]
        name = "swish(channels)"  # QuickGelu's alpha is one number
    elif name == "gaussian_gelu" and not np.any(np.asarray(arguments.get("mu", 0.0))):
        if np.all(np.asarray(arguments.get("sigma", 1.0)) == 1):
            return "gelu(approximate='none')"  # dividing by 1 and multiplying by it doubles the time
        # One number for all, or one a channel. With fixed numbers the module calls the kernel that overflows as well.
        fixed = all(isinstance(arguments.get(key, 0.0), float) for key in ("mu", "sigma"))
        safe = fixed or np.min(np.asarray(arguments.get("sigma", 1.0))) >= 1
        name = "gaussian_gelu(mu=0)" if safe else "gaussian_gelu(mu=0, sigma<1)"
    elif name == "softplus" and arguments.get("beta", 1.0) == 1.0 and arguments.get("threshold", 20.0) == 20.0:
        # Above torch's default threshold of 20, Softplus(x) - x < 2.1e-9: less than float32 resolves at 20.
        name = "softplus(beta=1)"
    return name if name in TABLE else None
