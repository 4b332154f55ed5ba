"""Write the tables of ``docs/lowering.md`` anew: ``make docs``, or ``python docs/make_lowering.py``."""

from pathlib import Path

from _lowering_rows import recipe_rows
from _pages import with_blocks, write
from _text import table

from lit_gelu.export.lowering import policy, precision
from lit_gelu.export.lowering.lowering_table import TABLE

PAGE = Path(__file__).resolve().parent / "lowering.md"


def blocks() -> dict[str, str]:
    """Return the tables by name.

    Returns:
        Texts by the names of the blocks that they stand in.
    """
    missing = [
        [row.target, ", ".join(f"`{name}`" for name in sorted(row.operators)), ", ".join(row.dtypes), since, row.why]
        for row in policy.MISSING
        for since in ["every opset" if row.since == 1 else f"from {row.since}"]
    ]
    same: dict[tuple[tuple[str, ...], ...], list[str]] = {}  # activations by their lines
    for row in TABLE:
        same.setdefault(tuple(map(tuple, recipe_rows(row))), []).append(row)
    recipes = []
    for lines, rows in same.items():
        notes = "; ".join(f"{where}: {text}" for row in rows for where, text in TABLE[row].notes.items())
        names = ", ".join(f"`{row}`" for row in rows)
        for i, line in enumerate(lines):
            recipes.append([names if i == 0 else "", *line, notes if i == 0 else ""])
    kept = ", ".join(f"`{name}`" for name in precision.STRICT_KEEP)
    overflowing = ", ".join(f"`{name}`" for name in precision.OVERFLOWING["fp16"])
    return {
        "missing": table(["target", "operators", "dtypes", "opset", "what happens"], missing),
        "kept": f"{kept}. In fp16 files {overflowing} do under `fast` too, since CUDA's kernels of sums overflow.",
        "recipes": table(
            ["activation", "recipe", "where", "strict 16 bit: absolute error beside the last place", "notes"], recipes
        ),
    }


def page() -> str:
    """Return the page with its tables as they are now.

    Returns:
        Its text.

    Raises:
        ValueError: If a block is not on the page, or there is one that nobody writes.
    """
    return with_blocks(PAGE, blocks())


if __name__ == "__main__":
    write(PAGE, page())
