"""Write the records into ``docs/gpu.md``: ``make docs``, or ``python docs/make_gpu.py``.

What stands between the two marks of the page is read from ``docs/data/gpu-*.json``; the rest is written by hand.
"""

from pathlib import Path

from _gpu_records import gpu_records
from _pages import write

PAGE = Path(__file__).resolve().parent / "gpu.md"
BEGIN, END = "<!-- records: make docs -->", "<!-- end of records -->"


def page() -> str:
    """Return the page.

    Returns:
        Its text.
    """
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n\n{gpu_records()}\n\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Write the page."""
    write(PAGE, page())


if __name__ == "__main__":
    main()
