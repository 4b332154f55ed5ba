"""What the commands print: tables in a terminal, plain columns in a pipe, JSON where it is asked for."""

import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.rule import Rule
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from lit_gelu.display import printable_lines
from lit_gelu.files import is_special, write_atomically

_PIPE_WIDTH = 10_000  # nothing is wrapped or cut off that another program reads


class SafeConsole(Console):
    """Prints text of any origin without what a terminal would obey; colours and lines are of the console alone."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render, with control characters as `lit_gelu.display.printable` writes them."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable_lines(segment.text))


class PlainConsole(SafeConsole):
    """Prints for programs: no colours, no lines drawn around tables, one line a row."""

    def __init__(self, **options: Any) -> None:
        super().__init__(width=_PIPE_WIDTH, color_system=None, force_terminal=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render, with tables as columns of text."""
        if isinstance(renderable, Table):
            renderable = Text(plain_table(renderable, self), no_wrap=True, overflow="ignore")
        elif isinstance(renderable, Rule):
            renderable = Text(str(renderable.title))
        return super().render(renderable, options)


def plain_table(table: Table, console: Console) -> str:
    """Return a table as columns of text: its title, a line for the heads, one for each row, its caption."""

    def text(cell: RenderableType) -> str:
        content = console.render_str(cell).plain if isinstance(cell, str) else str(cell)
        return " ".join(content.split())

    columns = [[text(cell) for cell in column.cells] for column in table.columns]
    if table.show_header:
        columns = [[text(column.header), *cells] for column, cells in zip(table.columns, columns, strict=True)]
    aligned = []
    for column, cells in zip(table.columns, columns, strict=True):
        width = max(map(len, cells), default=0)
        aligned.append([cell.rjust(width) if column.justify == "right" else cell.ljust(width) for cell in cells])
    lines = ["  ".join(cells).rstrip() for cells in zip(*aligned, strict=True)]
    ends = [[text(end)] if end else [] for end in (table.title, table.caption)]
    return "\n".join([*ends[0], *lines, *ends[1]])


def console_for_output(**options: Any) -> Console:
    """Return a console on standard output, plain into a pipe or a file; options are those of rich."""
    if not sys.stdout.isatty():
        return PlainConsole(markup=False, **options)
    # Early releases of rich take "" for a wish.
    return SafeConsole(markup=False, no_color=bool(os.environ.get("NO_COLOR")), **options)


def write_text(text: str, target: str) -> None:
    """Write a report into a file, or on standard output where the file is ``-``."""
    if target == "-":
        sys.stdout.write(printable_lines(text.rstrip()) + "\n")
        return
    if is_special(target):  # such as /dev/stderr: there is nothing to be kept, and no file to take its place
        Path(target).write_text(text.rstrip() + "\n", encoding="utf-8", errors="backslashreplace")
        return
    with write_atomically(target) as temporary:
        temporary.write_text(text.rstrip() + "\n", encoding="utf-8", errors="backslashreplace")


def silence_known_warnings() -> None:
    """Turn off warnings about the versions of torch and Lightning working together: the user could not mend them."""
    # torch 2.15 deprecates a pytree name that lightning 2.6 uses.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"lightning\.pytorch\.utilities\._pytree")
