"""Write ``docs/kernels.md``: ``make docs``, or ``python docs/make_kernels.py``.

The prose is in ``docs/templates/kernels.md``; every ``{{name}}`` in it is replaced by what ``docs/data/kernels.json``
says.
"""

import re
from pathlib import Path

from _kernel_records import kernel_tables

from lit_gelu.files import write_atomically

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
    known, template = kernel_tables(), TEMPLATE.read_text()
    asked = set(re.findall(r"\{\{(\w+)\}\}", template))
    if asked != set(known):
        raise ValueError(f"not computed: {sorted(asked - set(known))}; not asked for: {sorted(set(known) - asked)}")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: known[match[1]], template)


def main() -> None:
    """Write the page."""
    text = page()
    with write_atomically(PAGE) as path:
        path.write_text(text)
    print(f"wrote {PAGE.name}, {len(text.splitlines())} lines")


if __name__ == "__main__":
    main()
