"""Write ``docs/architectures.md`` from the record of ``benchmarks/architectures.py``.

python docs/make_architectures.py
"""

import json
import sys
from pathlib import Path
from typing import Any

from _pages import with_blocks, write
from _text import table

PAGE = Path(__file__).resolve().parent / "architectures.md"
sys.path.append(str(PAGE.parents[1] / "benchmarks"))

import architectures  # noqa: E402 - a script, no package

# What a message says, in words.
REASONS = {
    "Could not guard on data-dependent": "`forward` branches on values in tensors",
    "complex-valued": "computes with complex numbers",
    "draws random numbers": "draws random numbers in evaluation mode",
    "into a Python number": "`forward` turns the number of rows into a Python number",
    "weakref": "torch.export does not trace its experts: a weak reference",
    "which is not part of": "exported and proved; a swap is refused by name: a helper function makes the call",
}


def _left_out(record: dict[str, Any]) -> str:
    """Return how many architectures are not in the table, and why, the commonest reasons first."""
    reasons = [row["left_out"] for row in record["rows"].values() if "left_out" in row]
    limits = [reason for reason in reasons if reason.startswith("more than")]
    return (
        f"{len(reasons) - len(limits)} more were tried and not built: their sizes do not fit together when each is "
        f"made small, or `forward` needs more than ids, pixels or sound. {len(limits)} took more than "
        f"{architectures.SECONDS} seconds or {architectures.PARAMETERS // 10**6} million parameters."
    )


def _torch_alone(record: dict[str, Any]) -> str:
    """Return what `torch.onnx.export` does not write, and `export_onnx` does."""
    rows = [
        row
        for row in architectures.rows_of(record)
        if architectures.is_exported(row, "ours") and not architectures.is_exported(row, "plain")
    ]
    experts = sum("grouped_mm" in row["plain_error"] for row in rows)
    return (
        f"`torch.onnx.export` does not write {len(rows)} of those that `export_onnx` writes: {experts} are mixtures of "
        "experts, whose grouped matrix product it does not translate."
    )


def _failures(record: dict[str, Any]) -> str:
    rows = [[name, by_torch, _in_words(reason)] for name, by_torch, reason in architectures.failures(record)]
    return table(["architecture", "exported by torch", "reason"], rows) if rows else "None."


def _in_words(reason: str) -> str:
    text = next((words for part, words in REASONS.items() if part in reason), " ".join(reason.split()))
    text = text.replace("<", "").replace(">", "").replace("|", "/")
    return f"{text[:150]} ..." if len(text) > 150 else text


def page() -> str:
    """Return the page as the record has it."""
    record = json.loads(architectures.RECORD.read_text())
    names = [row["name"] for row in architectures.rows_of(record)]
    counts = {library: sum(name.startswith(f"{library}.") for name in names) for library in architectures.LIBRARIES}
    counted = ", ".join(f"{count} of {library} {record['versions'][library]}" for library, count in counts.items())
    versions = ", ".join(f"{name} {record['versions'][name]}" for name in ("torch", "onnxruntime"))
    header, *rows = architectures.summary(record)
    return with_blocks(
        PAGE,
        {
            "machine": f"{len(names)} architectures: {counted}; {versions}; {record['machine']}. {_left_out(record)}",
            "summary": table(header, rows),
            "torch": _torch_alone(record),
            "failures": _failures(record),
        },
    )


if __name__ == "__main__":
    write(PAGE, page())
