"""Write ``docs/architectures.md`` from the record of ``benchmarks/architectures.py``.

python docs/make_architectures.py
"""

import json
import math
import statistics
from pathlib import Path
from typing import Any

from _pages import with_blocks, write
from _text import number, table

PAGE = Path(__file__).resolve().parent / "architectures.md"
RECORD = Path(__file__).resolve().parent / "data" / "exported_architectures.json"
RIGHT = 1e-4  # of the largest output
LIBRARIES = ("transformers", "timm", "torchvision")

Row = dict[str, Any]


def measured(record: dict[str, Any]) -> list[Row]:
    """Return the rows of architectures that could be built.

    Args:
        record: What the benchmark wrote.

    Returns:
        Them, in the record's order.
    """
    return [row for row in record["rows"].values() if "left_out" not in row]


def _exported(row: Row, what: str) -> bool:
    return f"{what}_errors" in row


def _right(row: Row, what: str) -> bool:
    """Return whether a file gives the module's outputs at two, one and three rows."""
    errors = row.get(f"{what}_errors", {})
    return bool(errors) and all(error is not None and error <= RIGHT for error in errors.values())


def _of(rows: list[Row], count: int) -> str:
    return f"{count} of {len(rows)}"


def _summary(record: dict[str, Any]) -> str:
    columns = [_column([row for row in measured(record) if row["name"].startswith(f"{name}.")]) for name in LIBRARIES]
    rows = [[what, *(column[what] for column in columns)] for what in columns[0]]
    return table(["", *LIBRARIES], rows)


def _column(rows: list[Row]) -> dict[str, str]:
    """Return what the page says of a library, by what it is about."""
    swapped = [row for row in rows if "undone" in row]
    ours, plain = ([row for row in rows if _exported(row, what)] for what in ("ours", "plain"))
    ratios = [row["ours_seconds"] / row["plain_seconds"] for row in ours if _exported(row, "plain")]
    seen, calls = (sum(row.get(what, 0) for row in rows) for what in ("seen", "calls"))
    alarms = [row for row in ours if row.get("parity") is False and _right(row, "ours")]
    drops = [row for row in ours if row.get("parity") is True and not _right(row, "ours")]
    return {
        "calls of activations found": f"{seen:,} of {calls:,}",
        "swapped, and undone to the bit": _of(swapped, sum(row["undone"] for row in swapped)),
        "exported by lit-gelu": _of(rows, len(ours)),
        "exported by `torch.onnx.export`": _of(rows, len(plain)),
        "right at one, two and three rows, lit-gelu": _of(ours, sum(_right(row, "ours") for row in ours)),
        "the same, `torch.onnx.export`": _of(plain, sum(_right(row, "plain") for row in plain)),
        "right, and refused by `check_parity`": str(len(alarms)),
        "wrong, and passed by it": str(len(drops)),
        "processor seconds over torch's, median": number(statistics.median(ratios), 2) if ratios else "",
        "the same, worst": number(max(ratios), 2) if ratios else "",
    }


def _failures(record: dict[str, Any]) -> str:
    rows = []
    for row in measured(record):
        reason = row.get("ours_error") or row.get("swap_error") or row.get("parity_error")
        if reason is None and _exported(row, "ours") and not _right(row, "ours"):
            errors = [error for error in row["ours_errors"].values() if error is not None]
            reason = f"outputs off by {number(max(errors, default=math.inf), 2)}"
        if reason is None and row.get("parity") is False:
            reason = f"parity: {'; '.join(row['reasons'])}"
        if reason is not None:
            rows.append([row["name"], "yes" if _exported(row, "plain") else "no", _short(reason)])
    return table(["architecture", "by torch", "reason"], rows) if rows else "None."


def _short(reason: str) -> str:
    text = " ".join(reason.split()).replace("<", "").replace(">", "")
    return f"{text[:150]} ..." if len(text) > 150 else text


def page() -> str:
    """Return the page as the record has it.

    Returns:
        Its text.
    """
    record = json.loads(RECORD.read_text())
    counts = {library: sum(row["name"].startswith(f"{library}.") for row in measured(record)) for library in LIBRARIES}
    counted = ", ".join(f"{count} of {library} {record['versions'][library]}" for library, count in counts.items())
    machine = (
        f"{sum(counts.values())} architectures: {counted}. torch {record['versions']['torch']}; {record['machine']}."
    )
    return with_blocks(PAGE, {"machine": machine, "summary": _summary(record), "failures": _failures(record)})


if __name__ == "__main__":
    write(PAGE, page())
