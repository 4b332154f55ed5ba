"""Write ``docs/lowering.md``: ``make docs``, or ``python docs/make_lowering.py``.

The prose is in ``docs/templates/lowering.md``; every ``{{name}}`` in it is replaced by what the lowering tables say.
"""

import itertools
from pathlib import Path

from _lowering_rows import recipe_rows
from _pages import filled, write
from _text import number, table

from lit_gelu.export.lowering import kernels, policy, precision
from lit_gelu.export.lowering.lowering_table import TABLE

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "lowering.md"
TEMPLATE = DOCS / "templates" / "lowering.md"


def _missing() -> str:
    rows = [
        [row.target, ", ".join(f"`{name}`" for name in sorted(row.operators)), ", ".join(row.dtypes), since, row.why]
        for row in kernels.MISSING
        for since in ["every opset" if row.since == 1 else f"from {row.since}"]
    ]
    return table(["target", "operators", "dtypes", "opset", "what happens"], rows)


def _policy_table() -> str:
    rows = []
    for row, group in itertools.groupby(policy.cells(), key=lambda cell: cell[0]):
        lines = recipe_rows(row, [cell[1:] for cell in group])
        notes = "; ".join(f"{where}: {text}" for where, text in TABLE[row].notes.items())
        for i, line in enumerate(lines):
            rows.append([f"`{row}`" if i == 0 else "", *line, notes if i == 0 else ""])
    head = ["activation", "recipe", "where", "strict 16 bit: absolute error beside the last place", "notes"]
    return table(head, rows)


def values() -> dict[str, str]:
    """Return what the template asks for.

    Returns:
        Texts by name.
    """
    return {
        "strict_ulp": "one",
        "two_roundings": number(policy.TWO_ROUNDINGS),
        "fp32_error": number(policy.FP32_ERROR),
        "fast_ulp": number(policy.FAST_ULP),
        "default_opset": str(kernels.DEFAULT_OPSET),
        "oldest_opset": str(kernels.OLDEST_OPSET),
        "newest_opset": str(kernels.NEWEST_OPSET),
        "tensorrt_opset": str(kernels.accepted_range("tensorrt")[-1]),
        "missing_table": _missing(),
        "kept_operators": ", ".join(f"`{name}`" for name in precision.STRICT_KEEP),
        "overflowing_operators": ", ".join(f"`{name}`" for name in precision.OVERFLOWING["fp16"]),
        "policy_table": f"{len(TABLE)} rows.\n\n{_policy_table()}",
    }


def page() -> str:
    """Return the page.

    Returns:
        Its text.

    Raises:
        ValueError: If the template asks for what nobody computes, or something computed is not on the page.
    """
    return filled(TEMPLATE, values())


def main() -> None:
    """Write the page."""
    write(PAGE, page())


if __name__ == "__main__":
    main()
