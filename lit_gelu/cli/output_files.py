"""What a command may not write over: a file that it reads, or that another option writes."""

from collections.abc import Iterator
from pathlib import Path

import jsonargparse

from lit_gelu.errors import LitGeluError
from lit_gelu.files import is_file, is_special

OUTPUTS = ("output", "json", "csv", "markdown", "html", "figure", "plot")  # options for files that are written


class OverwrittenFileError(LitGeluError, ValueError):
    """An output in the place of an input, or of another output."""


def check_outputs(arguments: jsonargparse.Namespace) -> None:
    """Refuse outputs that would replace each other, or a file that another argument names."""
    given = list(_files(arguments))
    for name, path in given:
        for other, place in given:
            if name in OUTPUTS and other != name and _is_same(path, place):
                use = f"--{other} writes" if other in OUTPUTS else "this command reads"
                raise OverwrittenFileError(
                    f"--{name} {str(path)!r} is the file that {use}, and would replace it. Give another."
                )


def _files(arguments: jsonargparse.Namespace) -> Iterator[tuple[str, Path]]:
    """Yield what is to be written, and what is there and may be read, with the names of the arguments."""
    for name, value in vars(arguments).items():
        for text in value if isinstance(value, list) else [value]:
            is_written = name in OUTPUTS and text != "-"
            if isinstance(text, str) and (is_written or is_file(text)) and not is_special(text):
                yield name, Path(text)


def _is_same(one: Path, other: Path) -> bool:
    return one == other or (is_file(one) and is_file(other) and one.samefile(other))
