"""``lit-gelu new``: write a small project that trains, swaps, exports and is tested: lit-gelu new my_project."""

import importlib.util
import keyword
import re
import sys
from importlib.metadata import version
from pathlib import Path

import jsonargparse

from lit_gelu.cli.options import command_parser
from lit_gelu.errors import LitGeluError
from lit_gelu.files import UnwritablePathError
from lit_gelu.leftovers import forget, make_temporary_folder

EXAMPLES = """\
examples:
  lit-gelu new my_project                     then: cd my_project; lit-gelu fit --config config.yaml
  lit-gelu new work/digit-reader              the package in it is called digit_reader
"""
DESCRIPTION = (
    "Write a small project: a LightningModule whose activation has a name, a data module, a configuration with a swap "
    "and a monitor, an export script and a test. It trains as it stands, and downloads nothing."
)
_TEMPLATES = Path(__file__).parent / "new_project"
_SUFFIX = ".template"
_LONGEST = 60


class NewProjectError(LitGeluError, ValueError):
    """A project that cannot be written as asked."""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser of ``lit-gelu new``."""
    parser = command_parser("new", EXAMPLES, DESCRIPTION)
    parser.add_argument("project", help="the folder to write; its last part is the project's name")
    return parser


def run(arguments: jsonargparse.Namespace) -> int:
    """Run ``lit-gelu new``."""
    folder = Path(arguments.project)
    written = write_project(folder)
    sys.stdout.write(
        f"wrote {folder}: {', '.join(written)}\n\n"
        f"  cd {folder}\n  lit-gelu fit --config config.yaml\n  python -m pytest\n\n"
        f"{folder / 'README.md'} says how to go on.\n"
    )
    return 0


def package_name(project: str) -> str:
    """Return the name of a project's package.

    Args:
        project: The project's name; dashes become underscores.

    Returns:
        The name to import.

    Raises:
        NewProjectError: If it is no name for a package, or another package has it.

    Example:
        >>> package_name("digit-reader")
        'digit_reader'
    """
    package = project.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", package) or keyword.iskeyword(package) or len(package) > _LONGEST:
        raise NewProjectError(
            f"{project!r} is no name for a project. Give small letters, digits, _ or -, a letter first, at most "
            f"{_LONGEST} of them and no word of Python's own: {_suggestion(project)}."
        )
    if package in {"tests", "runs"} or _is_taken(package):
        raise NewProjectError(
            f"The name {project!r} is taken: Python has another module {package!r}. Give another one: my_{package}."
        )
    return package


def write_project(folder: Path) -> list[str]:
    """Write a project, whole or not at all.

    Args:
        folder: The folder; it is made, with those above it. One that is there must be empty.

    Returns:
        The files' names within the folder.

    Raises:
        NewProjectError: If the name cannot be used, or the folder holds something.
        UnwritablePathError: If the folder cannot be written.
    """
    folder = folder.absolute()
    package = package_name(folder.name)
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise NewProjectError(f"{str(folder)!r} is no folder, and nothing is overwritten. Give another name.")
    if folder.is_dir() and any(folder.iterdir()):
        raise NewProjectError(f"{str(folder)!r} holds files, and nothing is overwritten. Give another name.")
    values = {"name": folder.name, "package": package, "version": version("lit-gelu")}
    try:
        return _write(folder, _files(values))
    except OSError as error:
        raise UnwritablePathError(
            f"Cannot write {str(folder)!r}: {error.strerror or error}. Give a folder that you may write to."
        ) from error


def _write(folder: Path, files: dict[str, str]) -> list[str]:
    """Write the files into a temporary folder, which then takes its place."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = make_temporary_folder(folder)
    try:
        for name, text in files.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        if folder.is_dir():
            folder.rmdir()  # it is empty; not every system renames onto a folder
        temporary.rename(folder)
    finally:
        forget(temporary)
    return list(files)


def _files(values: dict[str, str]) -> dict[str, str]:
    """Return the text of each file, by its name in the project."""
    files = {}
    for path in sorted(_TEMPLATES.rglob(f"*{_SUFFIX}")):
        *folders, name = path.relative_to(_TEMPLATES).parts
        folders = [values["package"] if part == "package" else part for part in folders]
        stem = name.removesuffix(_SUFFIX)
        target = "/".join([*folders, f".{stem}" if stem == "gitignore" else stem])
        files[target] = re.sub(r"@(name|package|version)@", lambda found: values[found[1]], path.read_text("utf-8"))
    return files


def _is_taken(package: str) -> bool:
    """Return whether Python finds a module of that name already."""
    if package in sys.stdlib_module_names:
        return True
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None  # an empty folder in the current one has no origin


def _suggestion(project: str) -> str:
    """Return a name like the given one that is accepted."""
    name = re.sub(r"[^a-z0-9_]+", "_", project.lower()).strip("_")[:_LONGEST]
    return name if re.fullmatch(r"[a-z]\w*", name) and not keyword.iskeyword(name) else "my_project"
