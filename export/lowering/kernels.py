"""Which operators are valid at an opset for a dtype (``onnx`` says), and which a runtime has no kernel for (a table).

What a runtime lacks was read from the placement of onnxruntime-gpu 1.31.1's CUDA provider and, for TensorRT, from the
table of operators of the TensorRT 10 parser. ``portable`` is what all of them can run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import onnx
import onnx_ir as ir
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

TARGETS = ("portable", "ort-cpu", "ort-cuda", "tensorrt")
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


MISSING: tuple[Missing, ...] = (
    Missing(
        "ort-cuda",
        frozenset({"Elu", "Selu", "ThresholdedRelu"}),
        ("fp32", "fp16", "bf16"),
        22,
        "runs on the CPU, between two copies: 300 times slower on an H200",
    ),
    Missing("ort-cuda", frozenset({"Celu"}), ("fp32", "fp16", "bf16"), 1, "runs on the CPU at every opset"),
    Missing(
        "ort-cuda",
        frozenset({"LeakyRelu", "PRelu", "Log", "Reciprocal", "Where", "Greater", "Less", "Elu", "Selu"}),
        ("bf16",),
        1,
        "onnxruntime refuses the file",
    ),
    Missing("tensorrt", frozenset({"HardSwish", "Mish"}), ("bf16",), 1, "the parser refuses the file"),
)


def ceiling(target: str) -> int:
    """Return the newest opset that a target reads.

    Args:
        target: The runtime.

    Returns:
        The opset.

    Example:
        >>> ceiling("tensorrt"), ceiling("portable")
        (20, 23)
    """
    return CEILING.get(target, NEWEST_OPSET)


def has_kernel(target: str, operator: str, dtype: str, opset: int) -> bool:
    """Return whether a runtime has a kernel for a standard operator, as far as is known.

    Args:
        target: The runtime; ``portable`` has what every other one has.
        operator: Its name.
        dtype: Of its input: ``fp32``, ``fp16`` or ``bf16``.
        opset: Version of the standard operators.

    Returns:
        Whether it runs there.

    Example:
        >>> has_kernel("ort-cuda", "Elu", "fp32", 21), has_kernel("ort-cuda", "Elu", "fp32", 22)
        (True, False)
    """
    return not any(
        operator in row.operators and dtype in row.dtypes and opset >= row.since
        for row in MISSING
        if target in {row.target, "portable"}
    )


@cache
def has_contrib_operator(operator: str) -> bool:
    """Return whether the installed onnxruntime knows one of its own operators: ScaledSiLU came with 1.31.

    Args:
        operator: Its name, with the domain.

    Returns:
        Whether a file with it can be opened.

    Example:
        >>> has_contrib_operator("com.microsoft::QuickGelu"), has_contrib_operator("com.microsoft::SlowGelu")
        (True, False)
    """
    return operator in _contrib_operators()


@cache
def _contrib_operators() -> frozenset[str]:
    return frozenset(f"{schema.domain}::{schema.name}" for schema in get_all_operator_schema())


def is_valid(operator: str, dtype: str, opset: int) -> bool:
    """Return whether a standard operator exists at an opset and takes a dtype.

    Args:
        operator: Its name.
        dtype: Of what it computes with.
        opset: Version of the standard operators.

    Returns:
        Whether a file with it is valid.

    Example:
        >>> is_valid("Gelu", "fp32", 19), is_valid("Gelu", "fp32", 20)
        (False, True)
        >>> is_valid("Mish", "bf16", 21), is_valid("Mish", "bf16", 22)
        (False, True)
    """
    return DTYPES[dtype] in accepted_types(operator, int(operator == "Where"), opset)  # Where's first input is Boolean


@cache
def schema_of(operator: str, opset: int) -> onnx.defs.OpSchema | None:
    """Return a standard operator's schema.

    Args:
        operator: Its name.
        opset: Version of the standard operators.

    Returns:
        The schema, ``None`` if the operator does not exist at that opset.
    """
    try:
        return onnx.defs.get_schema(operator, opset, "")
    except onnx.defs.SchemaError:
        return None


@cache
def accepted_types(operator: str, index: int, opset: int, *, output: bool = False) -> frozenset[ir.DataType]:
    """Return which of the three floating-point types an input or output of a standard operator may have.

    Args:
        operator: Its name.
        index: Which input or output; beyond the last, a variadic one is meant.
        opset: Version of the standard operators.
        output: Whether it is an output.

    Returns:
        The types; none if the operator does not exist at that opset.

    Example:
        >>> sorted(kind.name for kind in accepted_types("Erf", 0, 20))
        ['BFLOAT16', 'FLOAT', 'FLOAT16']
    """
    schema = schema_of(operator, opset)
    formal = [] if schema is None else list(schema.outputs if output else schema.inputs)
    if not formal or schema is None:
        return frozenset()
    text = formal[min(index, len(formal) - 1)].type_str
    allowed = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == text), [text])
    return frozenset(kind for kind, name in _TYPE_STRINGS.items() if name in allowed)
