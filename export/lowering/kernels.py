"""What an export is for: which operators are valid at an opset for a dtype (``onnx`` says), and which opset fits.

What a runtime lacks was read from the registry of kernels of onnxruntime-gpu 1.31.1's CUDA provider and, for TensorRT,
from the table of operators of the TensorRT 10 parser. ``portable`` is what all of them can run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import onnx
import onnx_ir as ir
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from lit_gelu.errors import ArgumentError

TARGETS = ("portable", "ort-cpu", "ort-cuda", "tensorrt")
POLICIES = ("strict", "fast")
DTYPES: Mapping[str, ir.DataType] = {
    "fp32": ir.DataType.FLOAT,
    "fp16": ir.DataType.FLOAT16,
    "bf16": ir.DataType.BFLOAT16,
}
_TYPE_STRINGS = {
    ir.DataType.FLOAT: "tensor(float)",
    ir.DataType.FLOAT16: "tensor(float16)",
    ir.DataType.BFLOAT16: "tensor(bfloat16)",
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
    """Kernels that a runtime does not have.

    Args:
        target: The runtime.
        operators: Standard operators.
        dtypes: Of their input.
        since: The first opset at which they are missing.
        why: What happens instead.
    """

    target: str
    operators: frozenset[str]
    dtypes: tuple[str, ...]
    since: int
    why: str


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

MISSING: tuple[Missing, ...] = (
    Missing(
        "ort-cuda",
        _GONE_IN_22,
        ("fp32", "fp16", "bf16"),
        22,
        "runs on the CPU, between two copies: 300 times slower on an H200. Activations, MaxPool and "
        "InstanceNormalization are written in other operators there",
    ),
    Missing(
        "ort-cuda",
        frozenset({"GroupNormalization"}),
        ("fp32", "fp16", "bf16"),
        1,
        "a part of it runs on the CPU, so it is written in other operators",
    ),
    Missing("ort-cuda", frozenset({"Celu"}), ("fp32", "fp16", "bf16"), 1, "runs on the CPU at every opset"),
    Missing(
        "ort-cuda",
        _NOT_IN_BFLOAT16_ON_CUDA,
        ("bf16",),
        1,
        "onnxruntime refuses the file: they stand in float32 between Casts",
    ),
    Missing(
        "ort-cuda",
        frozenset({"EyeLike", "GridSample"}),
        ("fp16",),
        1,
        "runs on the CPU: they stand in float32 between Casts",
    ),
    Missing("tensorrt", frozenset({"HardSwish", "Mish"}), ("bf16",), 1, "the parser refuses the file"),
)


def has_kernel(runtime: str, operator: str, dtype: str, opset: int) -> bool:
    """Return whether a runtime has a kernel for a standard operator, as far as is known."""
    return not any(
        operator in row.operators and dtype in row.dtypes and opset >= row.since
        for row in MISSING
        if runtime in {row.target, "portable"}  # which has what every other one has
    )


@cache
def runs(operator: str, runtime: str, dtype: str, opset: int) -> bool:
    """Return whether an operator, ``domain::Name`` if it is no standard one, is valid and has a kernel."""
    if "::" in operator:
        return runtime.startswith("ort-") and has_contrib_operator(operator)
    return is_valid(operator, dtype, opset) and has_kernel(runtime, operator, dtype, opset)


def has_contrib_operator(operator: str) -> bool:
    """Return whether the installed onnxruntime knows one of its own operators: ScaledSiLU came with 1.31."""
    return operator in _contrib_operators()


@cache
def _contrib_operators() -> frozenset[str]:
    return frozenset(f"{schema.domain}::{schema.name}" for schema in get_all_operator_schema())


def is_valid(operator: str, dtype: str, opset: int) -> bool:
    """Return whether a standard operator exists at an opset and takes a dtype, or takes Booleans alone."""
    accepted = accepted_types(operator, int(operator == "Where"), opset)  # Where's first input is Boolean
    return DTYPES[dtype] in accepted or (not accepted and _takes_booleans_alone(operator, opset))


def _takes_booleans_alone(operator: str, opset: int) -> bool:
    """Return whether every input of a standard operator is a Boolean."""
    schema = schema_of(operator, opset)
    allowed = {} if schema is None else {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    inputs = [] if schema is None else [list(allowed.get(entry.type_str, [entry.type_str])) for entry in schema.inputs]
    return bool(inputs) and all(types == ["tensor(bool)"] for types in inputs)


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
    return frozenset(kind for kind, name in _TYPE_STRINGS.items() if name in allowed)


def accepted_range(runtime: str) -> range:
    """Return the opsets that a runtime reads and torch's exporter writes."""
    return range(OLDEST_OPSET, CEILING.get(runtime, NEWEST_OPSET) + 1)


def checked_opset(opset: object, runtime: str) -> int | None:
    """Refuse an opset that was asked for and cannot be written, or that the runtime does not read."""
    if opset is None:
        return None
    accepted = accepted_range(runtime)
    if not isinstance(opset, int) or isinstance(opset, bool) or opset not in accepted:
        reason = (
            f" TensorRT 10 reads no newer one than {accepted[-1]}."
            if isinstance(opset, int) and opset in range(accepted.stop, NEWEST_OPSET + 1)
            else ""
        )
        raise ArgumentError(
            f"opset={opset!r} is not accepted with target={runtime!r}.{reason} Accepted: {accepted.start} to "
            f"{accepted[-1]}, or None for the smallest from {DEFAULT_OPSET} on that fits."
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
            if (
                value is not None
                and value.dtype in _FLOATS
                and value.dtype not in accepted_types(node.op_type, i, opset)
            ):
                problems[node.op_type] = f"{node.op_type} does not take {value.dtype.name.lower()} there"
    return list(problems.values())


def off_target(nodes: Sequence[ir.Node], runtime: str, opset: int) -> list[str]:
    """Say which nodes of a finished graph a runtime has no kernel for, and what happens instead."""
    names = {kind: name for name, kind in DTYPES.items()}
    problems = {}
    for node in nodes:
        kinds = {names[value.dtype] for value in node.inputs if value is not None and value.dtype in names}
        for row in MISSING:
            if (
                runtime == row.target
                and node.op_type in row.operators
                and kinds & set(row.dtypes)
                and opset >= row.since
                and node.domain in {"", "ai.onnx"}
            ):
                problems[node.op_type] = f"{node.op_type} at opset {opset} on {runtime}: {row.why}"
    return list(problems.values())


def raise_opset(model: ir.Model, opset: int) -> None:
    """Move a model to a newer opset in place."""
    # Between the opsets that this package writes, operators gained dtypes and keep their meaning, but for
    # GroupNormalization, which takes one scale a channel from opset 21 on.
    old = model.graph.opset_imports.get("", opset)
    changed = [
        node.op_type
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
        if node.domain == "" and node.op_type == "GroupNormalization"
    ]
    if changed and old < 21 <= opset:
        raise ArgumentError(
            f"this model needs opset {opset}, and its GroupNormalization means something else there. Use opset={old} "
            "with dtype='fp32' or 'fp16'."
        )
    model.graph.opset_imports[""] = opset
    for function in model.functions.values():
        function.opset_imports[""] = opset
