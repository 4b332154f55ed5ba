"""Which recipe an activation takes on a target, by what the runtimes do with operators; ``docs/lowering.md`` prints it.

A line ``"ort-cuda fp16|bf16 strict": "fp32 native"`` says: on this target, in these dtypes, under this policy, take the
recipe that `lowering_table` calls ``native``, computed in float32 between one Cast in front and one behind. ``*`` is
any. The first line that fits decides: first those of the activation's row (`OnnxRecipes.policy`), then those of `RULES`
for its operators, then `DEFAULT`. An activation that a user registered is treated alike.

* ``strict`` is as accurate as PyTorch's own kernel in that dtype. In 16 bit PyTorch computes in float32 and rounds
  once, so whatever is not one operator that does the same stands in a float32 region.
* ``fast`` is the fastest known. Its error is stated in the row's notes.

Every 16-bit choice under ``strict`` is within one unit in the last place of the true value (`TWO_ROUNDINGS` for
ScaledSiLU, which rounds twice), plus what `absolute_error` states for it; under ``fast`` within `FAST_ULP` units of the
last place of ``max(1, |y|)`` on the CPU, and what the row's notes say elsewhere. Every float32 choice is within
`FP32_ERROR` in units of ``max(1, |y|)``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from lit_gelu.activations.onnx_recipes import LOWERINGS, OnnxRecipes
from lit_gelu.export.lowering.kernels import DEFAULT_OPSET, DTYPES, POLICIES, TARGETS, Target, accepted_range, runs
from lit_gelu.export.lowering.lowering_table import TABLE, operators

FP32_ERROR = (
    2.5e-6  # in units of max(1, |y|): x Sigmoid(x) is off by 2.3e-6 where the CPU's Sigmoid becomes 0, at -15.9
)

DEFAULT: Mapping[str, str] = {
    "* fp16|bf16 strict": "fp32 accurate",
    "* fp32 *": "native",
    "* * fast": "native",
    "* * strict": "fp32 native",
}

_EXPONENTIAL: Mapping[str, str] = {"ort-cpu fp32 *": "primitives", "tensorrt fp16|bf16 strict": "fp32 native"}
RULES: tuple[tuple[frozenset[str], Mapping[str, str]], ...] = (
    # By operators of the native recipe; the first row all of whose operators are in it is taken.
    # Where Sigmoid and Mul stand side by side, onnxruntime fuses them to QuickGelu: 1 - 1 / (1 + exp(v)), which
    # cancels. x / (1 + exp(-v)) is not fused, and it is also right where the CPU's Sigmoid is 0 (below -15.9).
    (frozenset({"Sigmoid", "Mul"}), {"tensorrt fp16|bf16 strict": "fp32 native"}),
    # CUDA's Sigmoid and HardSwish compute in 16 bit: 1 - 1 / (1 + exp(x)) cancels, 1/6 is rounded. At -3 HardSwish was
    # off by 8.6e-4 in float16 and 6.6e-3 in bfloat16 on an H200.
    (frozenset({"Sigmoid"}), {"ort-cuda fp16|bf16 strict": "fp32 native", "tensorrt * *": "native"}),
    (frozenset({"Elu"}), _EXPONENTIAL),
    (frozenset({"Selu"}), _EXPONENTIAL),
    (frozenset({"Celu"}), _EXPONENTIAL),
    (
        frozenset({"Softplus"}),
        {
            "ort-cpu fp32 *": "primitives",  # Softplus is a scalar loop there
            "portable|ort-cpu fp16|bf16 *": "fp32 native",  # before opset 22 the CPU's is infinite above x = 11 in fp16
        },
    ),
    (frozenset({"HardSwish"}), {"tensorrt fp16 *": "native"}),
    (frozenset({"Mish"}), {"ort-cpu fp32 *": "primitives", "ort-cpu * *": "fp32 primitives"}),
)
# Where one kernel adds a bias too and is faster; in bfloat16 it is as slow. In float16 it computes in float16, and
# 1 + erf cancels there: at -3.67 it is off by 4.5e-4, which is all of the value.
_BIASED = ("ort-cuda fp32 *", "ort-cuda fp16 fast")
_ROUND_ONCE = frozenset({"Relu", "Clip", "LeakyRelu", "PRelu", "Tanh"})  # alone they need no float32 around them

# Largest absolute error beside the last place, of float32 arithmetic within a 16-bit file, measured over all values of
# both dtypes with onnxruntime 1.31's CPU kernels. That of a formula whose erf or tanh cancels is in its row.
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


def choose(recipes: OnnxRecipes, target: Target, opset: int) -> Choice:
    """Return what an activation becomes at an opset; `LookupError` if nothing is valid there."""
    # Where the first choice is not valid there, or the target has no kernel for it, the next of these is taken: the
    # native recipe, the primitives, and both again in float32; under strict those in float32 come first.
    for choice in _ladder(recipes, target):
        if is_available(choice, target, opset):
            return choice
    raise LookupError(f"there is no recipe for {target}, opset {opset}")


def preferred(recipes: OnnxRecipes, target: Target) -> Choice:
    """Return the first choice that some opset of the target allows; `LookupError` if there is none."""
    for choice in _ladder(recipes, target):
        for opset in accepted_range(target.runtime):
            if opset >= DEFAULT_OPSET and is_available(choice, target, opset):
                return choice
    raise LookupError(f"there is no recipe for {target}")


def with_bias(recipes: OnnxRecipes, choice: Choice, target: Target) -> Choice | None:
    """Return the recipe of x + bias in the place of a choice; ``None`` if there is none, or it gains nothing."""
    biased = None if recipes.biased is None else Choice(recipes.biased, "contrib")
    plain = choice.recipe == recipes.native and not choice.in_fp32 and any(_fits(line, target) for line in _BIASED)
    return biased if biased is not None and plain and is_available(biased, target, DEFAULT_OPSET) else None


def is_available(choice: Choice, target: Target, opset: int) -> bool:
    """Return whether a choice is valid at an opset, and whether the target has its kernels."""
    inner = "fp32" if choice.in_fp32 else target.dtype
    return all(runs(name, target.runtime, inner, opset) for name in operators(choice.recipe))


def ulp_bound(choice: Choice) -> float:
    """Return how many units in the last place a strict 16-bit choice may be off."""
    return TWO_ROUNDINGS if "ScaledSiLU" in choice.recipe else 1.0


def absolute_error(recipes: OnnxRecipes, choice: Choice) -> float:
    """Return how far a strict 16-bit choice may be off beside one unit in the last place."""
    own = SUBNORMAL if recipes.absolute is None else recipes.absolute
    return max(own, *(KERNELS.get(name, 0.0) for name in operators(choice.recipe)), 0.0)


def cells() -> Iterator[tuple[str, Target, Choice]]:
    """Give the whole table: row, target and choice."""
    for row, recipes in TABLE.items():
        for runtime in TARGETS:
            for dtype in DTYPES:
                for policy in POLICIES:
                    target = Target(runtime, dtype, policy)
                    yield row, target, preferred(recipes, target)


def _ladder(recipes: OnnxRecipes, target: Target) -> Iterator[Choice]:
    """Give the choices of a cell in the order in which they are tried."""
    rule = _rule(operators(recipes.recipe("native")[1]))
    wanted = [text for lines in (recipes.policy, rule, DEFAULT) for line, text in lines.items() if _fits(line, target)]
    plain, region = ["native", "primitives"], ["fp32 native", "fp32 primitives"]
    if target.dtype == "fp32":
        region = []
    others = [*region, *plain] if target.policy == "strict" else [*plain, *region]
    for text in dict.fromkeys([*wanted, *others]):
        choice = _read(text, recipes, target.dtype)
        if choice is not None:
            yield choice


@cache
def _rule(names: tuple[str, ...]) -> Mapping[str, str]:
    """Return the lines for a recipe's operators."""
    if len(names) == 1 and names[0] in _ROUND_ONCE:
        return {"* * *": "native"}
    return next((lines for telling, lines in RULES if telling <= set(names)), {})


@cache
def _fits(line: str, target: Target) -> bool:
    """Return whether a line is for a target."""
    parts = zip(line.split(), (target.runtime, target.dtype, target.policy), strict=True)
    return all(part == "*" or value in part.split("|") for part, value in parts)


def _read(text: str, recipes: OnnxRecipes, dtype: str) -> Choice | None:
    """Return the choice that a line names; ``None`` if the row has no such recipe."""
    name, in_fp32 = text.removeprefix("fp32 "), text.startswith("fp32 ") and dtype != "fp32"
    if name == "accurate":
        return Choice(recipes.accurate, name, in_fp32) if recipes.accurate is not None else None
    if name in LOWERINGS:
        if name != "native" and not recipes.applies(name):
            return None
        lowering, recipe = recipes.recipe(name)
        return Choice(recipe, lowering, in_fp32)
    return Choice(name, "contrib" if "microsoft." in name else "native", in_fp32)
