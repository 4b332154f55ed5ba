"""Write ``docs/activations.md`` and its plots: ``make docs``, or ``python docs/make_activations.py``.

The prose is in ``docs/templates/activations.md``; every ``{{name}}`` in it is replaced by what a function of this
folder computes, so that no number on the page was typed. Costs and architectures come from records in ``docs/data``,
which ``benchmarks/activations.py --record docs/data/activation_cost.json`` and ``docs/record_architectures.py`` write.
"""

import argparse
import re
from pathlib import Path

import torch
from _claims import claims
from _family import family
from _plots import draw_all
from _records import records
from _tutorial import tutorial

from lit_gelu.files import write_atomically

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
    values = {**family(), **claims(), **tutorial(), **records()}
    template = TEMPLATE.read_text()
    asked = set(re.findall(r"\{\{(\w+)\}\}", template))
    if asked != set(values):
        raise ValueError(f"not computed: {sorted(asked - set(values))}; not asked for: {sorted(set(values) - asked)}")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def main() -> None:
    """Write the page and its plots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-plots", action="store_true", help="write the page alone")
    arguments = parser.parse_args()
    text = page()
    with write_atomically(PAGE) as path:
        path.write_text(text)
    if not arguments.no_plots:
        draw_all(IMAGES)
    print(f"wrote {PAGE.name}, {len(text.splitlines())} lines" + ("" if arguments.no_plots else ", and its plots"))


if __name__ == "__main__":
    main()
