"""Write ``docs/kernels.md``: ``make docs``, or ``python docs/make_kernels.py``.

The prose is in ``docs/templates/kernels.md``; every ``{{name}}`` in it is replaced by what ``docs/data/kernels.json``
says.
"""

from pathlib import Path

from _kernel_records import kernel_tables
from _pages import filled, write

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "kernels.md"
TEMPLATE = DOCS / "templates" / "kernels.md"


def page() -> str:
    """Return the page.

    Returns:
        Its text.

    Raises:
        ValueError: If the template asks for what nobody computes, or something computed is not on the page.
    """
    return filled(TEMPLATE, kernel_tables())


def main() -> None:
    """Write the page."""
    write(PAGE, page())


if __name__ == "__main__":
    main()
