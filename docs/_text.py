"""Numbers and tables as Markdown."""

import math
from collections.abc import Iterable, Sequence


def number(value: float, digits: int = 8) -> str:
    """Return a number with so many significant digits; infinities as words of the page."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value + 0.0:.{digits}g}"


def several(values: Iterable[float], digits: int = 8) -> str:
    """Return numbers with commas between them; a pair that differs in sign alone as one."""
    values = list(values)
    if len(values) == 2 and values[0] != 0 and math.isclose(values[0], -values[1], rel_tol=1e-9):
        return f"±{number(abs(values[0]), digits)}"
    return ", ".join(number(value, digits) for value in values)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
