"""Changes of a page's text: links that lead within the site, and lists as MkDocs reads them."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

_FENCE = re.compile(r"^\s*(```+|~~~+)")
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_ITEM = re.compile(r"^(?:[-*+]|\d+[.)]) ")


def prose_lines(text: str) -> Iterator[tuple[str, bool]]:
    """Give each line of a page, and whether it is prose and not part of a block of code."""
    fence = ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if fence:
            yield line, False
            fence = "" if mark and line.strip() == fence else fence
        else:
            fence = mark[1] if mark else ""
            yield line, not fence


def relinked(text: str, change: Callable[[str], str]) -> str:
    """Return a page with the target of each link and image changed; web addresses stay, and so does code.

    Args:
        text: Markdown.
        change: From the target without its anchor to another one.

    Returns:
        The new text.

    Example:
        >>> relinked("[a](b.md#c) [d](https://e) [f](#g)", lambda target: f"x/{target}")
        '[a](x/b.md#c) [d](https://e) [f](#g)'
    """

    def new(match: re.Match[str]) -> str:
        target, mark, anchor = match[2].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        return f"{match[1]}{change(target)}{mark}{anchor}{match[3]}"

    return "\n".join(_LINK.sub(new, line) if prose else line for line, prose in prose_lines(text))


def with_room_for_lists(text: str) -> str:
    r"""Return a page with an empty line in front of each list: GitHub does without it, Python's Markdown does not.

    Args:
        text: Markdown.

    Returns:
        The new text.

    Example:
        >>> with_room_for_lists("Two:\n- a\n- b")
        'Two:\n\n- a\n- b'
    """
    lines: list[str] = []
    inside = False
    for line, prose in prose_lines(text):
        item = prose and _ITEM.match(line)
        if item and not inside and lines and lines[-1].strip():
            lines.append("")
        inside = bool(item) or (inside and (line.startswith(" ") or not line.strip()))
        lines.append(line)
    return "\n".join(lines)


def relative(target: PurePosixPath, page: PurePosixPath) -> str:
    """Return the way from a page to a file, both from the same root.

    Example:
        >>> relative(PurePosixPath("a/b.md"), PurePosixPath("c/d.md"))
        '../a/b.md'
    """
    return PurePosixPath(os.path.relpath(target, page.parent)).as_posix()
