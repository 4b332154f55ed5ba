"""Write ``docs/activations.md`` and its plots: ``make docs``, or ``python docs/make_activations.py``.

The prose is in ``docs/templates/activations.md``; every ``{{name}}`` in it is replaced by what a function of this
folder computes, so that no number on the page was typed. Costs and architectures come from records in ``docs/data``,
which ``benchmarks/activations.py --record docs/data/activation_cost.json`` and ``docs/record_architectures.py`` write.
"""

import argparse
from pathlib import Path

import torch
from _claims import claims
from _family import family
from _pages import filled, write
from _plots import draw_all
from _records import records

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "activations.md"
TEMPLATE = DOCS / "templates" / "activations.md"
IMAGES = DOCS / "images" / "activations"


def page() -> str:
    """Compute every number and return the page.

    Returns:
        Its text.

    Raises:
        ValueError: If the template asks for what nobody computes, or something computed is not on the page.
    """
    torch.set_num_threads(1)
    return filled(TEMPLATE, {**family(), **claims(), **records()})


def main() -> None:
    """Write the page and its plots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-plots", action="store_true", help="write the page alone")
    arguments = parser.parse_args()
    write(PAGE, page())
    if not arguments.no_plots:
        draw_all(IMAGES)


if __name__ == "__main__":
    main()
