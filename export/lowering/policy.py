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

What a runtime lacks was read from the kernels of onnxruntime-gpu 1.31.1's CUDA provider and the operators of the
TensorRT 10 parser. ``portable`` is what all of them can run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import onnx
import onnx_ir as ir
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from lit_gelu.activations.onnx_recipes import LOWERINGS, OnnxRecipes
from lit_gelu.errors import ArgumentError
from lit_gelu.export.lowering.lowering_table import operators, recipe_of

TARGETS = ("portable", "ort-cpu", "ort-cuda", "tensorrt")
POLICIES = ("strict", "fast")
DTYPES: Mapping[str, ir.DataType] = {
    "fp32": ir.DataType.FLOAT,
    "fp16": ir.DataType.FLOAT16,
    "bf16": ir.DataType.BFLOAT16,
}

OLDEST_OPSET = 18  # the oldest that torch's exporter writes
DEFAULT_OPSET = 20  # the first with a Gelu operator, and the last that TensorRT 10 reads
NEWEST_OPSET = 23  # the newest that torch's exporter documents; onnxruntime 1.31 reads up to 26
CEILING: Mapping[str, int] = {"tensorrt": 20}
_FLOATS = frozenset(DTYPES.values())


@dataclass(frozen=True)
class Target:
    """What a file is for: the runtime, the dtype of weights and activations, and whether accuracy goes before speed."""

    runtime: str = "portable"
    dtype: str = "fp32"
    policy: str = "strict"

    def __str__(self) -> str:
        """Return it as a line of the lowering policy names it."""
        return f"{self.runtime} {self.dtype} {self.policy}"


@dataclass(frozen=True)
class Missing:
    """Kernels of standard operators that a runtime does not have."""

    target: str  # the runtime
    operators: frozenset[str]
    dtypes: tuple[str, ...]  # of their input
    since: int  # the first opset at which they are missing
    why: str  # what happens instead

    def includes(self, operator: str, dtypes: set[str], opset: int) -> bool:
        """Return whether an operator is one of them with inputs of these dtypes."""
        return operator in self.operators and not dtypes.isdisjoint(self.dtypes) and opset >= self.since


# Of standard operators at opsets 18 to 23, as the registry of onnxruntime-gpu 1.31.1's CUDA provider has them;
# `tests/cuda_kernels.txt` is that registry. A kernel that is registered "from 12 on" is one for version
# 12 of the operator: ONNX has a version 22 of MaxPool and of InstanceNormalization, and the provider has none for it.
_GONE_IN_22 = frozenset({"Dropout", "Elu", "EyeLike", "InstanceNormalization", "MaxPool", "Selu", "ThresholdedRelu"})
_NOT_IN_BFLOAT16_ON_CUDA = _GONE_IN_22 - {"Dropout"} | {
    "Acos", "Acosh", "ArgMax", "ArgMin", "Asin", "Asinh", "Atan", "Atanh", "BatchNormalization", "Ceil", "Clip",
    "Col2Im", "ConvTranspose", "Cosh", "CumSum", "DFT", "DepthToSpace", "Det", "Equal", "Floor", "GRU",
    "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "Greater", "GreaterOrEqual", "GridSample", "Hardmax", "LRN",
    "LSTM", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "LpPool", "MaxRoiPool", "MaxUnpool", "Mean",
    "MeanVarianceNormalization", "NonZero", "OneHot", "PRelu", "Pad", "RNN", "Reciprocal", "ReduceL1", "ReduceL2",
    "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare", "Resize", "Round",
    "STFT", "Sinh", "SpaceToDepth", "Tan", "Unique",
}  # fmt: skip

_ON_THE_CPU = (
    "runs on the CPU, between two copies: 300 times slower on an H200. Activations and MaxPool are written in other "
    "operators"
)
_BETWEEN_CASTS = "they stand in float32 between Casts"
MISSING: tuple[Missing, ...] = (
    Missing("ort-cuda", _GONE_IN_22, tuple(DTYPES), 22, _ON_THE_CPU),
    Missing("ort-cuda", frozenset({"GroupNormalization"}), tuple(DTYPES), 1, "a part of it runs on the CPU"),
    Missing("ort-cuda", frozenset({"Celu"}), tuple(DTYPES), 1, "runs on the CPU at every opset"),
    Missing("ort-cuda", _NOT_IN_BFLOAT16_ON_CUDA, ("bf16",), 1, f"onnxruntime refuses the file: {_BETWEEN_CASTS}"),
    Missing("ort-cuda", frozenset({"EyeLike", "GridSample"}), ("fp16",), 1, f"runs on the CPU: {_BETWEEN_CASTS}"),
    Missing("tensorrt", frozenset({"HardSwish", "Mish"}), ("bf16",), 1, "the parser refuses the file"),
)


def has_kernel(runtime: str, operator: str, dtype: str, opset: int) -> bool:
    """Return whether a runtime has a kernel for a standard operator, as far as is known."""
    # Portable has what every other one has.
    return not any(row.includes(operator, {dtype}, opset) for row in MISSING if runtime in {row.target, "portable"})


@cache
def runs(operator: str, runtime: str, dtype: str, opset: int) -> bool:
    """Return whether an operator, ``domain::Name`` if it is no standard one, is valid and has a kernel."""
    if "::" in operator:
        return runtime.startswith("ort-") and has_contrib_operator(operator)
    return is_valid(operator, dtype, opset) and has_kernel(runtime, operator, dtype, opset)


@cache
def has_contrib_operator(operator: str) -> bool:
    """Return whether the installed onnxruntime knows one of its own operators: ScaledSiLU came with 1.31."""
    return any(operator == f"{schema.domain}::{schema.name}" for schema in get_all_operator_schema())


def is_valid(operator: str, dtype: str, opset: int) -> bool:
    """Return whether a standard operator exists at an opset and takes a dtype, or no floating-point numbers at all."""
    accepted = accepted_types(operator, int(operator == "Where"), opset)  # Where's first input is Boolean
    return DTYPES[dtype] in accepted or (not accepted and schema_of(operator, opset) is not None)


@cache
def schema_of(operator: str, opset: int) -> onnx.defs.OpSchema | None:
    """Return a standard operator's schema."""
    try:
        return onnx.defs.get_schema(operator, opset, "")
    except onnx.defs.SchemaError:
        return None


@cache
def accepted_types(operator: str, index: int, opset: int, *, output: bool = False) -> frozenset[ir.DataType]:
    """Return which of the three floating-point types an input or output of a standard operator may have."""
    schema = schema_of(operator, opset)
    formal = [] if schema is None else list(schema.outputs if output else schema.inputs)
    if not formal or schema is None:
        return frozenset()
    text = formal[min(index, len(formal) - 1)].type_str
    allowed = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == text), [text])
    return frozenset(kind for kind in DTYPES.values() if f"tensor({kind.name.lower()})" in allowed)


def accepted_range(runtime: str) -> range:
    """Return the opsets that a runtime reads and torch's exporter writes."""
    return range(OLDEST_OPSET, CEILING.get(runtime, NEWEST_OPSET) + 1)


def checked_opset(opset: object, runtime: str) -> int | None:
    """Refuse an opset that was asked for and cannot be written, or that the runtime does not read."""
    if opset is None:
        return None
    accepted = accepted_range(runtime)
    if not isinstance(opset, int) or isinstance(opset, bool) or opset not in accepted:
        raise ArgumentError(
            f"opset={opset!r} is not accepted with target={runtime!r}. Accepted: {accepted.start} to {accepted[-1]}, "
            f"or None for the smallest from {DEFAULT_OPSET} on that fits."
        )
    return opset


def solve(graph: ir.Graph, target: Target, available: Callable[[int], bool], *, opset: int | None, traced: int) -> int:
    """Return the opset to write: the one that was asked for if the graph, with its markers, is valid there."""
    # Else the smallest from the graph's own on at which every activation's choice is available too, or, where none
    # suits them all, at which the rest of the graph is valid: choices then give way.
    nodes = [node for node in ir.traversal.RecursiveGraphIterator(graph) if node.domain in {"", "ai.onnx"}]
    candidates = (
        [opset] if opset is not None else [v for v in accepted_range(target.runtime) if v >= max(traced, DEFAULT_OPSET)]
    )
    valid = []
    for version in candidates:
        if not invalid_nodes(nodes, version):
            if available(version):
                return version
            valid.append(version)
    if valid:
        return valid[0]
    remedy = "Leave opset out: the smallest that fits is then taken." if opset else "Use dtype='fp32' or 'fp16'."
    raise ArgumentError(
        f"opset={candidates[0]} does not hold this model in {target.dtype} (target={target.runtime!r}): "
        f"{'; '.join(invalid_nodes(nodes, candidates[0])[:3])}. {remedy}"
    )


def invalid_nodes(nodes: Sequence[ir.Node], opset: int) -> list[str]:
    """Say which nodes are not valid at an opset."""
    problems = {}
    for node in nodes:
        if schema_of(node.op_type, opset) is None:
            problems[node.op_type] = f"{node.op_type} does not exist there"
            continue
        for i, value in enumerate(node.inputs):
            dtype = None if value is None else value.dtype
            if dtype in _FLOATS and dtype not in accepted_types(node.op_type, i, opset):
                problems[node.op_type] = f"{node.op_type} does not take {dtype.name.lower()} there"
    return list(problems.values())


def off_target(nodes: Sequence[ir.Node], runtime: str, opset: int) -> list[str]:
    """Say which nodes of a finished graph a runtime has no kernel for, and what happens instead."""
    names = {kind: name for name, kind in DTYPES.items()}
    problems = {}
    for node in nodes:
        kinds = {names[value.dtype] for value in node.inputs if value is not None and value.dtype in names}
        for row in MISSING if node.domain in {"", "ai.onnx"} else ():
            if runtime == row.target and row.includes(node.op_type, kinds, opset):
                problems[node.op_type] = f"{node.op_type} at opset {opset} on {runtime}: {row.why}"
    return list(problems.values())


# In units of max(1, |y|): x Sigmoid(x) is off by 2.3e-6 where the CPU's Sigmoid becomes 0, at -15.9.
FP32_ERROR = 2.5e-6

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
    *((frozenset({name}), _EXPONENTIAL) for name in ("Elu", "Selu", "Celu")),
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
    """What an activation becomes."""

    recipe: str  # as `lit_gelu.activations.onnx_recipes` has it
    lowering: str  # which column of that table it is; "contrib" for any other that only onnxruntime knows
    in_fp32: bool = False  # whether it is computed in float32 between two Casts, in a file of another dtype

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators in the order of the nodes."""
        inner = operators(self.recipe)
        return ("Cast", *inner, "Cast") if self.in_fp32 else tuple(inner)

    def __str__(self) -> str:
        """Return the recipe, behind ``fp32:`` if it is computed in float32."""
        return f"fp32: {self.recipe}" if self.in_fp32 else self.recipe


def choose(recipes: OnnxRecipes, target: Target, opset: int | None = None) -> Choice:
    """Return what an activation becomes at an opset, or at the best one; `LookupError` if nothing is valid there."""
    # Where the first choice is not valid there, or the target has no kernel for it, the next of these is taken: the
    # native recipe, the primitives, and both again in float32; under strict those in float32 come first.
    newer = accepted_range(target.runtime)[DEFAULT_OPSET - OLDEST_OPSET :]
    for choice in _ladder(recipes, target):
        if any(is_available(choice, target, version) for version in (newer if opset is None else [opset])):
            return choice
    raise LookupError(f"there is no recipe for {target}, opset {opset}")


def is_available(choice: Choice, target: Target, opset: int) -> bool:
    """Return whether a choice is valid at an opset, and whether the target has its kernels."""
    inner = "fp32" if choice.in_fp32 else target.dtype
    return all(runs(name, target.runtime, inner, opset) for name in operators(choice.recipe))


def ulp_bound(choice: Choice) -> float:
    """Return how many units in the last place a strict 16-bit choice may be off."""
    return TWO_ROUNDINGS if "ScaledSiLU" in choice.recipe else 1.0


def absolute_error(recipes: OnnxRecipes, choice: Choice) -> float:
    """Return how far a strict 16-bit choice may be off beside one unit in the last place."""
    absolute = SUBNORMAL if recipes.absolute is None else recipes.absolute
    return max(absolute, *(KERNELS.get(name, 0.0) for name in operators(choice.recipe)), 0.0)


def _ladder(recipes: OnnxRecipes, target: Target) -> Iterator[Choice]:
    """Give the choices of a cell in the order in which they are tried."""
    names = operators(recipe_of(recipes, "native")[1])
    rule = next((lines for telling, lines in RULES if telling.issubset(names)), {})
    if len(names) == 1 and names[0] in _ROUND_ONCE:
        rule = {"* * *": "native"}
    preferences = [
        text for lines in (recipes.policy, rule, DEFAULT) for line, text in lines.items() if _fits(line, target)
    ]
    plain, region = ["native", "primitives"], ["fp32 native", "fp32 primitives"]
    if target.dtype == "fp32":
        region = []
    others = [*region, *plain] if target.policy == "strict" else [*plain, *region]
    for text in dict.fromkeys([*preferences, *others]):
        choice = _read(text, recipes, target.dtype)
        if choice is not None:
            yield choice


@cache
def _fits(line: str, target: Target) -> bool:
    parts = zip(line.split(), (target.runtime, target.dtype, target.policy), strict=True)
    return all(part == "*" or value in part.split("|") for part, value in parts)


def _read(text: str, recipes: OnnxRecipes, dtype: str) -> Choice | None:
    """Return the choice that a line names; ``None`` if the row has no such recipe."""
    name, in_fp32 = text.removeprefix("fp32 "), text.startswith("fp32 ") and dtype != "fp32"
    if name == "accurate":
        return Choice(recipes.accurate, name, in_fp32) if recipes.accurate is not None else None
    if name in LOWERINGS:
        if name != "native" and getattr(recipes, name) is None:
            return None
        lowering, recipe = recipe_of(recipes, name)
        return Choice(recipe, lowering, in_fp32)
    return Choice(name, "contrib" if "microsoft." in name else "native", in_fp32)
