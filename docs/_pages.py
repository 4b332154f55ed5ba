"""Pages with something computed: in marked blocks, or in the place of every ``{{name}}`` of a template."""

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


def with_blocks(page: Path, blocks: Mapping[str, str]) -> str:
    """Return a page with what stands between ``<!-- name: ... -->`` and ``<!-- end of name -->`` written anew."""
    text = page.read_text()
    names = re.findall(r"<!-- end of (\w+) -->", text)
    if sorted(names) != sorted(blocks):
        raise ValueError(f"{page.name} has blocks {sorted(names)}; written are {sorted(blocks)}")
    for name, block in blocks.items():
        pattern = rf"(<!-- {name}: .*? -->\n).*?(<!-- end of {name} -->)"
        text = re.sub(pattern, lambda match, block=block: f"{match[1]}{block}\n{match[2]}", text, flags=re.DOTALL)
    return text


def write(page: Path, text: str) -> None:
    """Write a page, and say so."""
    with write_atomically(page) as path:
        path.write_text(text)
    print(f"wrote {page.name}, {len(text.splitlines())} lines")
