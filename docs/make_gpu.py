"""Write ``docs/gpu.md``: ``make docs``, or ``python docs/make_gpu.py``.

The prose is in ``docs/templates/gpu.md``; what ``{{records}}`` stands for is read from ``docs/data/gpu-*.json``.
"""

from pathlib import Path

from _gpu_records import gpu_records
from _pages import filled, write

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "gpu.md"
TEMPLATE = DOCS / "templates" / "gpu.md"


def page() -> str:
    """Return the page.

    Returns:
        Its text.
    """
    return filled(TEMPLATE, {"records": gpu_records()})


def main() -> None:
    """Write the page."""
    write(PAGE, page())


if __name__ == "__main__":
    main()
