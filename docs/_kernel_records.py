"""Tables from ``docs/data/kernels.json``, which ``benchmarks/kernels.py --static --values`` wrote."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from _text import number, table

RECORD = Path(__file__).resolve().parent / "data" / "kernels.json"
Row = dict[str, Any]
#: What a copy at full speed leaves time for on an H200, forward and backward.
BUDGETS = (31, 47)
_GENERATIONS = (80, 90, 100, 120)
_DIRECTIONS = ("forward", "backward")


def kernel_tables() -> dict[str, str]:
    """Return the texts that the page asks for.

    Returns:
        Texts by name.
    """
    record = json.loads(RECORD.read_text())
    templates, inductor = record["static"]["templates"], record["static"]["inductor"]
    return {
        "about": _about(record),
        "budget_forward": str(BUDGETS[0]),
        "budget_backward": str(BUDGETS[1]),
        "template_table": _template_table(templates),
        "template_summary": _template_summary(templates),
        "compiler_table": _compiler_table(inductor),
        "value_table": _value_table(record["values"]["rows"]),
    }


def _about(record: Row) -> str:
    facts, versions = record["machine"], record["versions"]
    names = ("python", "torch", "triton", "numpy")
    known = ", ".join(f"{name} {versions[name]}" for name in names)
    return f"{facts['processor']}, {facts['cores']} cores, {known}"


def _template_table(rows: list[Row]) -> str:
    """Return instructions an element of the bfloat16 kernels, a column for each generation."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row["dtype"] == "bf16":
            found.setdefault((row["template"], row["function"]), {})[row["sm"]] = row
    lines = [
        [
            f"`{template}`",
            function,
            *(number(by[sm]["instructions"], 3) for sm in _GENERATIONS),
            number(by[90]["mufu"], 2),
            str(by[90]["registers"]),
            str(by[90]["limit"]),
        ]
        for (template, function), by in found.items()
    ]
    head = ["kernel", "function", *(f"sm_{sm}" for sm in _GENERATIONS), "MUFU", "registers", "limit"]
    return table(head, lines)


def _template_summary(rows: list[Row]) -> str:
    """Return in a sentence what holds for all of them."""
    other = sum(row["instructions"] > row["limit"] for row in rows)
    spilled = sum(row["beside_registers"] > 0 for row in rows)
    narrow = sum("128" not in row["widths"] for row in rows)
    by_key = {(row["template"], row["function"], row["dtype"], row["sm"]): row["instructions"] for row in rows}
    fp16 = max(by_key[t, f, "fp16", sm] - n for (t, f, dtype, sm), n in by_key.items() if dtype == "bf16")
    return (
        f"Of {len(rows)} kernels (both dtypes, four generations) {other or 'none'} are above their limit, "
        f"{spilled or 'none'} spill registers or call functions, and {narrow or 'none'} access tensors with less than "
        "128 bits a thread. "
        + (f"Float16 takes up to {number(fp16, 2)} more than bfloat16." if fp16 > 0 else "Float16 never takes more.")
    )


def _compiler_table(rows: list[Row]) -> str:
    """Return instructions an element of what torch.compile makes, torch's function beside the fused one."""
    of = {(row["formula"], row["function"], row["pass"]): row["kernels"] for row in rows if row["sm"] == 90}
    functions = dict.fromkeys(row["function"] for row in rows)
    lines = [
        [function, *(_counts(of[formula, function, way]) for way in _DIRECTIONS for formula in ("torch", "fused"))]
        for function in functions
    ]
    return table(["function", *(f"{way}, {formula}" for way in _DIRECTIONS for formula in ("torch's", "fused"))], lines)


def _counts(kernels: list[Row]) -> str:
    """Return instructions of every kernel; of those with sums, how many there are."""
    counted = [number(kernel["instructions"], 3) for kernel in kernels if "instructions" in kernel]
    sums = len(kernels) - len(counted)
    return " + ".join([*counted, *([f"{sums} with sums"] if sums else [])])


def _value_table(rows: list[Row]) -> str:
    """Return largest errors of kernels beside those of torch's formulas."""
    of = {(row["function"], row["dtype"], row["way"]): row for row in rows}
    places = dict.fromkeys((row["function"], row["dtype"]) for row in rows)
    return table(
        ["function", "dtype", "kernel", "not the nearest", "f' of the kernel", "torch's formula", "at x"],
        (_value_line(of, *place) for place in places),
    )


def _value_line(of: dict[tuple[str, str, str], Row], function: str, dtype: str) -> Iterable[str]:
    kernel, other = of[function, dtype, "kernel"], of.get((function, dtype, "torch's formula"))
    ours = [f"{kernel['value_ulp']:.3f}", f"{kernel['not_nearest']:.3%}", f"{kernel['slope_ulp']:.3f}"]
    theirs = ["", ""] if other is None else [_places(other["value_ulp"]), number(other["at"], 3)]
    return [function, dtype, *ours, *theirs]


def _places(value: float | str) -> str:
    return "infinite" if isinstance(value, str) else f"{value:.3f}" if value < 10 else f"{value:.0f}"
