"""Pages that are a template, in which every ``{{name}}`` is replaced by something computed."""

import re
from collections.abc import Mapping
from pathlib import Path

from lit_gelu.files import write_atomically


def filled(template: Path, known: Mapping[str, str]) -> str:
    """Return a template with every name replaced; refuse one that asks for other names than are known."""
    text = template.read_text()
    asked = set(re.findall(r"\{\{(\w+)\}\}", text))
    if asked != set(known):
        raise ValueError(f"not computed: {sorted(asked - set(known))}; not asked for: {sorted(set(known) - asked)}")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: known[match[1]], text)


def write(page: Path, text: str) -> None:
    """Write a page, and say so."""
    with write_atomically(page) as path:
        path.write_text(text)
    print(f"wrote {page.name}, {len(text.splitlines())} lines")
