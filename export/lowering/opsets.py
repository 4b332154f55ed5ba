"""Finds the smallest opset at which every node of a graph is valid for its dtype and has a kernel on the target."""

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from lit_gelu.export.errors import ExportOptionError
from lit_gelu.export.lowering.kernels import (
    DEFAULT_OPSET,
    DTYPES,
    MISSING,
    NEWEST_OPSET,
    OLDEST_OPSET,
    accepted_types,
    ceiling,
    schema_of,
)
from lit_gelu.export.lowering.markers import MARKER_DOMAIN
from lit_gelu.export.lowering.policy import Choice, is_available

_FLOATS = frozenset(DTYPES.values())


def accepted_range(target: str) -> range:
    """Return the opsets that may be asked for.

    Args:
        target: The runtime.

    Returns:
        Oldest to newest.

    Example:
        >>> accepted_range("tensorrt")
        range(18, 21)
    """
    return range(OLDEST_OPSET, ceiling(target) + 1)


def checked_opset(opset: object, target: str) -> int | None:
    """Check the opset that was asked for.

    Args:
        opset: A number, or ``None`` for the solver's.
        target: The runtime.

    Returns:
        The same.

    Raises:
        ExportOptionError: If it is no opset that can be written, or one that the target does not read.

    Example:
        >>> checked_opset(18, "portable")
        18
    """
    if opset is None:
        return None
    accepted = accepted_range(target)
    if not isinstance(opset, int) or isinstance(opset, bool) or opset not in accepted:
        reason = (
            f" TensorRT 10 reads no newer one than {ceiling(target)}."
            if isinstance(opset, int) and opset in range(accepted.stop, NEWEST_OPSET + 1)
            else ""
        )
        raise ExportOptionError(
            f"opset={opset!r} is not accepted with target={target!r}.{reason} Accepted: {accepted.start} to "
            f"{accepted.stop - 1}, or None for the smallest from {DEFAULT_OPSET} on that fits."
        )
    return opset


def solve(graph: ir.Graph, wanted: Iterable[Choice], dtype: str, target: str, *, opset: int | None, traced: int) -> int:
    """Return the opset to write.

    Args:
        graph: The graph, with markers where activations stand.
        wanted: What each activation should become.
        dtype: The file's.
        target: The runtime.
        opset: The one that was asked for.
        traced: The graph's own.

    Returns:
        The one asked for if the graph is valid there; else the smallest from the graph's own on at which every choice
        is available too, or, where no opset suits them all, at which the rest of the graph is valid: choices then give
        way (`lit_gelu.export.lowering.policy.choose`).

    Raises:
        ExportOptionError: If the graph is not valid at the opset that was asked for, or at any that the target reads.
    """
    nodes = [node for node in ir.traversal.RecursiveGraphIterator(graph) if node.domain in {"", "ai.onnx"}]
    candidates = (
        [opset] if opset is not None else [v for v in accepted_range(target) if v >= max(traced, DEFAULT_OPSET)]
    )
    problems: Mapping[int, list[str]] = {v: invalid_nodes(nodes, v) for v in candidates}
    valid = [v for v in candidates if not problems[v]]
    if not valid:
        first = candidates[0]
        remedy = (
            "Leave opset out: the smallest that fits is then taken."
            if opset is not None
            else "Use dtype='fp32' or 'fp16'."
        )
        raise ExportOptionError(
            f"opset={first} does not hold this model in {dtype} (target={target!r}): {'; '.join(problems[first][:3])}. "
            f"{remedy}"
        )
    choices = list(wanted)
    for version in valid:
        if all(is_available(choice, target, dtype, version) for choice in choices):
            return version
    return valid[0]


def invalid_nodes(nodes: Sequence[ir.Node], opset: int) -> list[str]:
    """Say which nodes are not valid at an opset.

    Args:
        nodes: Nodes of standard operators, with the dtypes of their values.
        opset: Version of the standard operators.

    Returns:
        One sentence a kind of node.
    """
    found = {}
    for node in nodes:
        if schema_of(node.op_type, opset) is None:
            found[node.op_type] = f"{node.op_type} does not exist there"
            continue
        for i, value in enumerate(node.inputs):
            if (
                value is not None
                and value.dtype in _FLOATS
                and value.dtype not in accepted_types(node.op_type, i, opset)
            ):
                found[node.op_type] = f"{node.op_type} does not take {value.dtype.name.lower()} there"
    return list(found.values())


def off_target(nodes: Sequence[ir.Node], target: str, opset: int) -> list[str]:
    """Say which nodes a target has no kernel for, as far as is known.

    Args:
        nodes: Nodes of the finished graph.
        target: The runtime.
        opset: Version of the standard operators.

    Returns:
        One sentence a kind of node, with what happens instead.
    """
    names = {kind: name for name, kind in DTYPES.items()}
    found = {}
    for node in nodes:
        kinds = {names[value.dtype] for value in node.inputs if value is not None and value.dtype in names}
        for row in MISSING:
            if (
                target == row.target
                and node.op_type in row.operators
                and kinds & set(row.dtypes)
                and opset >= row.since
                and node.domain != MARKER_DOMAIN
            ):
                found[node.op_type] = f"{node.op_type} at opset {opset} on {target}: {row.why}"
    return list(found.values())


def raise_opset(model: ir.Model, opset: int) -> None:
    """Move a model to a newer opset in place.

    Between the opsets that this package writes, operators gained dtypes and keep their meaning, with the one exception
    of GroupNormalization, which takes one scale a channel from opset 21 on and is refused.

    Args:
        model: The model.
        opset: The new version of the standard operators.

    Raises:
        ExportOptionError: If the model has a GroupNormalization in its old form.
    """
    old = model.graph.opset_imports.get("", opset)
    changed = [
        node.op_type
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
        if node.domain == "" and node.op_type == "GroupNormalization"
    ]
    if changed and old < 21 <= opset:
        raise ExportOptionError(
            f"this model needs opset {opset}, and its GroupNormalization means something else there. Use opset={old} "
            "with dtype='fp32' or 'fp16'."
        )
    model.graph.opset_imports[""] = opset
    for function in model.functions.values():
        function.opset_imports[""] = opset
