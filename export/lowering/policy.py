"""Which recipe each activation takes, by target, dtype and policy. This table decides; ``docs/lowering.md`` prints it.

A line ``"ort-cuda fp16|bf16 strict": "fp32 native"`` says: on this target, in these dtypes, under this policy, take the
recipe that `lit_gelu.export.lowering.table` calls ``native``, computed in float32 between one Cast in front and one
behind. ``*`` is any. The first line that fits decides; the lines of `DEFAULT` follow every row's own.

* ``strict`` is as accurate as PyTorch's own kernel in that dtype. In 16 bit PyTorch computes in float32 and rounds
  once, so whatever is not one operator that does the same stands in a float32 region.
* ``fast`` is the fastest known. Its error is stated in `NOTES`.

Every 16-bit choice under ``strict`` is within one unit in the last place of the true value (`TWO_ROUNDINGS` for
ScaledSiLU, which rounds twice), plus what `absolute_error` states for it; under ``fast`` within `FAST_ULP` units of the
last place of ``max(1, |y|)`` on the CPU, and what `NOTES` says elsewhere. Every float32 choice is within `FP32_ERROR`
in units of ``max(1, |y|)``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from lit_gelu.activations.onnx_recipes import LOWERINGS, OnnxRecipes
from lit_gelu.export.lowering.kernels import DTYPES, TARGETS, ceiling, has_contrib_operator, has_kernel, is_valid
from lit_gelu.export.lowering.recipe import CONTRIB_DOMAIN, operators
from lit_gelu.export.lowering.table import TABLE

POLICIES = ("strict", "fast")
FP32_ERROR = (
    2.5e-6  # in units of max(1, |y|): x Sigmoid(x) is off by 2.3e-6 where the CPU's Sigmoid becomes 0, at -15.9
)

DEFAULT: Mapping[str, str] = {
    "* fp32 *": "native",
    "* * fast": "native",
    "* * strict": "fp32 native",
}

_ALWAYS: Mapping[str, str] = {"* * *": "native"}  # one operator that rounds once
_SIGMOID_GATE: Mapping[str, str] = {
    # Where Sigmoid and Mul stand side by side, onnxruntime fuses them to QuickGelu: 1 - 1 / (1 + exp(v)), which
    # cancels. x / (1 + exp(-v)) is not fused, and it is also right where the CPU's Sigmoid is 0 (below -15.9).
    "tensorrt fp16|bf16 strict": "fp32 native",
    "* fp16|bf16 strict": "fp32 accurate",
}
_EXPONENTIAL: Mapping[str, str] = {
    "ort-cpu fp32 *": "primitives",
    "tensorrt fp16|bf16 strict": "fp32 native",
    "* fp16|bf16 strict": "fp32 accurate",
}
_LOGARITHM: Mapping[str, str] = {
    "ort-cpu fp32 *": "primitives",  # Softplus is a scalar loop there
    "portable|ort-cpu fp16|bf16 *": "fp32 native",  # before opset 22 the CPU's fp16 Softplus is infinite above x = 11
}
_TAIL: Mapping[str, str] = {"* fp16|bf16 *": "fp32 native"}  # a polynomial of degree 9

_FUSED = "Mul(Gelu(Div(x, sigma), approximate='none'), sigma)"

POLICY: Mapping[str, Mapping[str, str]] = {
    "gelu(approximate='none')": _ALWAYS,  # every runtime computes it in float32
    "gelu(approximate='tanh')": {"tensorrt * *": "native"},  # the CUDA kernel computes in T
    "gelu(approximate='sigmoid')": _SIGMOID_GATE,
    # In float32, x / sigma overflows for no fp16 number. It does for those of bf16 and of float32 above 3.4e38 sigma.
    "gaussian_gelu(mu=0, sigma<1)": {"* * fast": _FUSED, "* fp16 strict": f"fp32 {_FUSED}"},
    "silu": {"ort-cuda fp16|bf16 strict": "microsoft.ScaledSiLU(x, alpha=1.0)", **_SIGMOID_GATE},
    "swish": _SIGMOID_GATE,
    "swish(channels)": _SIGMOID_GATE,
    "hard_swish": {"ort-cuda * *": "native", "tensorrt fp16 *": "native"},
    "mish": {"ort-cpu fp32 *": "primitives", "ort-cpu * *": "fp32 primitives"},
    "relu": _ALWAYS,
    "relu6": _ALWAYS,
    "relu2": _ALWAYS,
    "leaky_relu": _ALWAYS,
    "prelu": _ALWAYS,
    "elu": _EXPONENTIAL,
    "selu": {**_EXPONENTIAL, "ort-cpu fp32 *": "native"},  # one product more than ELU, and no faster than its operator
    "celu": _EXPONENTIAL,
    "sigmoid": {"ort-cuda|tensorrt * *": "native", "* fp16|bf16 strict": "fp32 accurate"},
    "tanh": _ALWAYS,
    "softplus(beta=1)": _LOGARITHM,
    "softplus": _LOGARITHM,
    "log_sigmoid": _LOGARITHM,
    "sqrt_softplus": {"portable|ort-cpu fp16|bf16 *": "fp32 native"},
    "clipped_gelu": _ALWAYS,
    "erfc": _TAIL,
    "ndtr": _TAIL,
    "log_ndtr": _TAIL,
}

_SAME_AS: Mapping[str, str] = {
    "zero_identity_map(gate='normal')": "gelu(approximate='none')",
    "zero_identity_map(gate='logistic')": "silu",
    "cdf_linear(distribution='normal')": "gelu(approximate='none')",
    "cdf_linear(distribution='logistic')": "silu",
}

# Largest absolute error beside the last place, of float32 arithmetic within a 16-bit file, measured over all values of
# both dtypes with onnxruntime 1.31's CPU kernels: erf and tanh cancel in the left tail.
ABSOLUTE: Mapping[str, float] = {
    "gelu(approximate='none')": 1e-7,
    "gelu(approximate='tanh')": 5.5e-7,
    "gaussian_gelu(mu=0)": 1e-7,  # times sigma
    "gaussian_gelu(mu=0, sigma<1)": 1e-7,  # times sigma
    "gaussian_gelu": 1e-7,
    "clipped_gelu": 1e-7,
    "mega_laplace": 2e-8,
    "xielu": 3e-8,
    "sqrt_softplus": 3e-23,
}
KERNELS: Mapping[str, float] = {  # of operators whose CPU kernels cancel, or are 0 too early
    "Sigmoid": 1.5e-6,
    "Elu": 6.5e-8,
    "Selu": 6.5e-8,
    "Celu": 6.5e-8,
    "com.microsoft::ScaledSiLU": 5.5e-7,  # rounds the sigmoid to T, where it is subnormal in fp16
}
TWO_ROUNDINGS = 1.5
SUBNORMAL = 2e-37  # float32's exp overflows at 88.7, so x exp(x) is 0 below -88.7
FAST_ULP = 4.0  # of a 16-bit file under ``fast``, in units of the last place of max(1, |y|)

NOTES: Mapping[tuple[str, str], str] = {
    ("gelu(approximate='tanh')", "ort-cuda fast"): "largest error 2.0e-3 (fp16), 9.0e-3 (bf16); 0 below -3.59, -3.06",
    ("gelu(approximate='sigmoid')", "ort-cuda fast"): "largest error 2.4e-3 (fp16), 1.8e-2 (bf16)",
    ("gaussian_gelu(mu=0, sigma<1)", "fast"): "infinite above sigma times the dtype's largest number",
    ("silu", "ort-cuda fast"): "largest error 4.2e-3 (fp16), 2.1e-2 (bf16); 0 below -7.62, -5.56",
    ("silu", "ort-cpu fp32"): "0 below -15.9, an error of 2.3e-6",
    ("mish", "ort-cuda fast"): "largest error 3.7e-3 (fp16), 2.1e-2 (bf16); 0 below -7.6, -5.56",
}


@dataclass(frozen=True)
class Choice:
    """What an activation becomes.

    Args:
        recipe: The recipe, as `lit_gelu.activations.onnx_recipes` has it.
        lowering: Which column of that table it is; ``contrib`` for any other that only onnxruntime knows.
        in_fp32: Whether it is computed in float32 between two Casts, in a file of another dtype.
    """

    recipe: str
    lowering: str
    in_fp32: bool = False

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators in the order of the nodes."""
        inner = operators(self.recipe)
        return ("Cast", *inner, "Cast") if self.in_fp32 else tuple(inner)

    def __str__(self) -> str:
        """Return the recipe, behind ``fp32:`` if it is computed in float32."""
        return f"fp32: {self.recipe}" if self.in_fp32 else self.recipe


def policy_of(row: str) -> Mapping[str, str]:
    """Return the lines of an activation, the default ones last.

    Args:
        row: Key of its row in the lowering table.

    Returns:
        What to take, by target, dtype and policy.
    """
    own = POLICY.get(_SAME_AS.get(row, row), {})
    return {**own, **{line: text for line, text in DEFAULT.items() if line not in own}}


def choose(row: str, target: str, dtype: str, policy: str, opset: int, recipes: OnnxRecipes | None = None) -> Choice:
    """Return what an activation becomes at an opset.

    Where the table's choice is not valid there, or the target has no kernel for it, the next of these is taken: its
    native recipe, its primitives, and both again in float32; under ``strict`` those in float32 come first.

    Args:
        row: Key of its row in the lowering table.
        target: The runtime.
        dtype: The file's: ``fp32``, ``fp16`` or ``bf16``.
        policy: ``strict`` or ``fast``.
        opset: Version of the standard operators.
        recipes: The recipes of an activation that is not in the table.

    Returns:
        The choice.

    Raises:
        LookupError: If nothing is valid at this opset.

    Example:
        >>> str(choose("gelu(approximate='tanh')", "ort-cuda", "fp16", "strict", 20))
        "fp32: Gelu(x, approximate='tanh')"
        >>> choose("elu", "ort-cuda", "fp32", "strict", 20).operators
        ('Elu',)
        >>> choose("elu", "ort-cuda", "fp32", "strict", 22).operators
        ('Relu', 'Min', 'Exp', 'Sub', 'Mul', 'Add')
    """
    for choice in _ladder(row, target, dtype, policy, recipes):
        if is_available(choice, target, dtype, opset):
            return choice
    raise LookupError(f"{row} has no recipe for {target}, {dtype}, opset {opset}")


def preferred(row: str, target: str, dtype: str, policy: str, recipes: OnnxRecipes | None = None) -> Choice:
    """Return the first choice that some opset of the target allows.

    Args:
        row: Key of its row in the lowering table.
        target: The runtime.
        dtype: The file's.
        policy: ``strict`` or ``fast``.
        recipes: The recipes of an activation that is not in the table.

    Returns:
        The choice.

    Raises:
        LookupError: If there is none.

    Example:
        >>> preferred("hard_swish", "ort-cuda", "bf16", "fast").recipe  # at opset 22
        'HardSwish(x)'
        >>> preferred("hard_swish", "tensorrt", "bf16", "fast").operators
        ('Mul', 'Add', 'Clip', 'Mul')
    """
    opsets = range(20, ceiling(target) + 1)
    for choice in _ladder(row, target, dtype, policy, recipes):
        if any(is_available(choice, target, dtype, opset) for opset in opsets):
            return choice
    raise LookupError(f"{row} has no recipe for {target}, {dtype}")


def is_available(choice: Choice, target: str, dtype: str, opset: int) -> bool:
    """Return whether a choice is valid at an opset, and whether the target has its kernels.

    Args:
        choice: The choice.
        target: The runtime.
        dtype: The file's.
        opset: Version of the standard operators.

    Returns:
        Whether it can be taken.
    """
    inner = "fp32" if choice.in_fp32 else dtype
    for name in operators(choice.recipe):
        if name.startswith(f"{CONTRIB_DOMAIN}::"):
            if not target.startswith("ort-") or not has_contrib_operator(name):
                return False
        elif not (is_valid(name, inner, opset) and has_kernel(target, name, inner, opset)):
            return False
    return True


def ulp_bound(choice: Choice) -> float:
    """Return how many units in the last place a strict 16-bit choice may be off.

    Args:
        choice: What an activation becomes.

    Returns:
        The bound.

    Example:
        >>> ulp_bound(Choice("Gelu(x, approximate='none')", "native"))
        1.0
    """
    return TWO_ROUNDINGS if "ScaledSiLU" in choice.recipe else 1.0


def absolute_error(row: str, choice: Choice) -> float:
    """Return how far a strict 16-bit choice may be off beside one unit in the last place.

    Args:
        row: Key of the activation's row in the lowering table.
        choice: What it becomes.

    Returns:
        The largest absolute error.

    Example:
        >>> absolute_error("gelu(approximate='none')", Choice("Gelu(x, approximate='none')", "native"))
        1e-07
    """
    own = ABSOLUTE.get(_SAME_AS.get(row, row), SUBNORMAL)
    return max(own, *(KERNELS.get(name, 0.0) for name in operators(choice.recipe)), 0.0)


def cells() -> Iterator[tuple[str, str, str, str, Choice]]:
    """Give the whole table: row, target, dtype, policy and choice.

    Yields:
        One cell after the other.
    """
    for row in TABLE:
        for target in TARGETS:
            for dtype in DTYPES:
                for policy in POLICIES:
                    yield row, target, dtype, policy, preferred(row, target, dtype, policy)


def _ladder(row: str, target: str, dtype: str, policy: str, recipes: OnnxRecipes | None) -> Iterator[Choice]:
    """Give the choices of a cell in the order in which they are tried."""
    lines = policy_of(row) if recipes is None else _own_lines(recipes)
    fitting = [text for pattern, text in lines.items() if _fits(pattern, target, dtype, policy)]
    plain, region = ["native", "primitives"], ["fp32 native", "fp32 primitives"]
    if dtype == "fp32":
        region = []
    others = [*region, *plain] if policy == "strict" else [*plain, *region]
    recipes = TABLE[row] if recipes is None else recipes
    for text in dict.fromkeys([*fitting, *others]):
        choice = _read(text, recipes, dtype)
        if choice is not None:
            yield choice


def _own_lines(recipes: OnnxRecipes) -> Mapping[str, str]:
    """Return the lines of a user's activation: the default ones, and its accurate recipe in 16 bits, if it has one."""
    own = {} if recipes.accurate is None else {"* fp16|bf16 strict": "fp32 accurate"}
    return {**own, **DEFAULT}


@cache
def _fits(pattern: str, target: str, dtype: str, policy: str) -> bool:
    """Return whether a line of the table is for this target, dtype and policy."""
    parts = zip(pattern.split(), (target, dtype, policy), strict=True)
    return all(part == "*" or value in part.split("|") for part, value in parts)


def _read(text: str, row: OnnxRecipes, dtype: str) -> Choice | None:
    """Return the choice that a line names; ``None`` if the row has no such recipe."""
    name, in_fp32 = text.removeprefix("fp32 "), text.startswith("fp32 ") and dtype != "fp32"
    if name == "accurate":
        return Choice(row.accurate, "accurate", in_fp32) if row.accurate is not None else None
    if name in LOWERINGS:
        if name != "native" and not row.applies(name):
            return None
        lowering, recipe = row.recipe(name)
        return Choice(recipe, lowering, in_fp32)
    return Choice(name, "contrib" if "microsoft." in name else "native", in_fp32)
