"""Write ``docs/paper.md`` and its figures: ``make docs``, or ``python docs/make_paper.py``.

The prose is in ``docs/templates/paper.md``; every ``{{name}}`` in it is replaced by what the runs in
``docs/data/paper_runs.jsonl.xz`` say. ``python docs/make_paper.py RESULTS`` takes the runs of a results folder first.
"""

import sys
from pathlib import Path

from _pages import filled, write
from _paper_runs import draw_figures, keep, paper_tables, records

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "paper.md"
TEMPLATE = DOCS / "templates" / "paper.md"
IMAGES = DOCS / "images" / "paper"


def page() -> str:
    """Return the page.

    Returns:
        Its text.

    Raises:
        ValueError: If the template asks for what nobody computes, or something computed is not on the page.
    """
    return filled(TEMPLATE, paper_tables(records()))


def main(results: str | None = None) -> None:
    """Write the page and draw its figures.

    Args:
        results: A results folder whose runs replace those that are kept.
    """
    if results is not None:
        keep(Path(results))
    write(PAGE, page())
    draw_figures(records(), IMAGES)


if __name__ == "__main__":
    main(*sys.argv[1:])
