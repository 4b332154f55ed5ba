"""What the commands print: tables in a terminal, plain columns in a pipe, JSON where it is asked for."""

import json
import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from lit_gelu.display import printable_lines
from lit_gelu.files import is_special, without_nonfinite, write_atomically

_PIPE_WIDTH = 10_000  # nothing is wrapped or cut off that another program reads


class SafeConsole(Console):
    """Prints text of any origin without what a terminal would obey, and for programs without lines around tables."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render, with control characters as `lit_gelu.display.printable` writes them."""
        if isinstance(renderable, Table) and not self.is_terminal:
            renderable.box, renderable.pad_edge = None, False
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable_lines(segment.text))


def console_for_output(**options: Any) -> Console:
    """Return a console on standard output, plain into a pipe or a file; options are those of rich."""
    if not sys.stdout.isatty():
        return SafeConsole(width=_PIPE_WIDTH, color_system=None, force_terminal=False, markup=False, **options)
    # Early releases of rich take "" for a wish.
    return SafeConsole(markup=False, no_color=bool(os.environ.get("NO_COLOR")), **options)


def write_text(text: str, target: str) -> None:
    """Write a report into a file, or on standard output where the file is ``-``."""
    line = text.rstrip() + "\n"
    if target == "-":
        sys.stdout.write(printable_lines(line))
    elif is_special(target) or target.startswith(("/dev/std", "/dev/fd/", "/proc/self/fd/")):  # perhaps of a log
        with Path(target).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line)
    else:
        with write_atomically(target) as temporary:
            temporary.write_text(line, encoding="utf-8", errors="backslashreplace")


def write_json(plain: Any, target: str, *, as_text: bool = True) -> None:
    """Write plain data as JSON; numbers that are not finite become text, or null."""
    write_text(json.dumps(without_nonfinite(plain, as_text=as_text), indent=2, allow_nan=False), target)


def present(report: Any, **targets: str | None) -> None:
    """Print a report, unless its JSON goes to standard output, and write it in every form that has a target."""
    if targets["json"] != "-":
        console_for_output(soft_wrap=True, highlight=False).print(str(report))
    for form, target in targets.items():
        if target is not None:
            write_text(getattr(report, f"to_{form}")(), target)


def silence_known_warnings() -> None:
    """Turn off warnings about the versions of torch and Lightning working together: the user could not mend them."""
    # torch 2.15 deprecates a pytree name that lightning 2.6 uses.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"lightning\.pytorch\.utilities\._pytree")
