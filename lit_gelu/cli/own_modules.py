"""Modules of the user's own on the command line: ``--import``, and the current folder on the path."""

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lit_gelu.errors import LitGeluError

OPTION = "--import"
HELP = "a module to import first, from the current folder or installed: it may register activations, define a model"


class OwnModuleError(LitGeluError, ValueError):
    """A module of the user's own that cannot be found."""


@contextmanager
def current_folder_on_path() -> Iterator[None]:
    """Let modules in the current folder be imported, as ``python -m`` does; installed ones come first."""
    # ``python -P`` and ``PYTHONSAFEPATH`` turn it off, as they do everywhere.
    folder = str(Path.cwd())
    if sys.flags.safe_path or folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def import_modules(names: Sequence[str]) -> None:
    """Import modules for what they register and define."""
    for name in names:
        if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
            hint = f" Did you mean {Path(name).stem}?" if name.endswith(".py") else ""
            raise OwnModuleError(f"{OPTION} {name!r} is no module's name.{hint} Give one such as my_package.my_module.")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # something that the module needs
            raise OwnModuleError(
                f"{OPTION} {name}: there is no module {error.name!r} in {str(Path.cwd())!r}, nor among those installed."
            ) from error


def import_early(arguments: Sequence[str]) -> list[str]:
    """Import what ``--import`` names before LightningCLI parses: short names of classes are then known."""
    # In the form that adds to a list, every one counts.
    words = iter(arguments)
    rewritten: list[str] = []
    for word in words:
        option, equals, name = word.partition("=")
        if option in {OPTION, f"{OPTION}+"}:
            name = name if equals else next(words, "")
            import_modules([name])
            word = f"{OPTION}+={name}"
        rewritten.append(word)
    return rewritten
