"""``lit-gelu new``: write a small project that trains, swaps, exports and is tested."""

import importlib.util
import keyword
import re
import sys
from importlib.metadata import version
from pathlib import Path

from lit_gelu.errors import ArgumentError
from lit_gelu.files import temporary_folder

_TEMPLATES = Path(__file__).parent / "new_project"


def new(project: str) -> int:
    """Write a small project: a LightningModule whose activation has a name, data, a configuration, a script, a test.

    The configuration has a swap and a monitor, the script exports. It trains as it stands, and downloads nothing.

    in a shell:
      lit-gelu new my_project                     then: cd my_project; lit-gelu fit --config config.yaml
      lit-gelu new work/digit-reader              the package in it is called digit_reader

    Args:
        project: the folder to write; its last part is the project's name
    """
    folder = Path(project)
    files = write_project(folder.absolute())
    sys.stdout.write(
        f"wrote {folder}: {', '.join(files)}\n\n"
        f"  cd {folder}\n  lit-gelu fit --config config.yaml\n  python -m pytest\n\n"
        f"{folder / 'README.md'} says how to go on.\n"
    )
    return 0


def write_project(folder: Path) -> list[str]:
    """Write a project, whole or not at all, and return the names of its files."""
    package = folder.name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,59}", package) or keyword.iskeyword(package):
        raise ArgumentError(
            f"{folder.name!r} is no name for a project. Give small letters, digits, _ or -, a letter first, at most 60 "
            "of them and no word of Python's own, such as my_project."
        )
    spec = importlib.util.find_spec(package)
    if package in {"tests", "runs"} or (spec is not None and spec.origin is not None):  # a mere folder has no origin
        raise ArgumentError(
            f"The name {folder.name!r} is taken by another module of Python. Give such as my_{package}."
        )
    if folder.is_symlink() or folder.exists():
        raise ArgumentError(f"{str(folder)!r} is there already, and nothing is overwritten. Give another name.")
    values = {"@name@": folder.name, "@package@": package, "@version@": version("lit-gelu")}
    folder.parent.mkdir(parents=True, exist_ok=True)
    names = []
    with temporary_folder(folder) as temporary:
        for template in sorted(_TEMPLATES.rglob("*.template")):
            name = template.relative_to(_TEMPLATES).as_posix().removesuffix(".template")
            name = name.replace("package/", f"{package}/").replace("gitignore", ".gitignore")
            text = template.read_text("utf-8")
            for placeholder, value in values.items():
                text = text.replace(placeholder, value)
            (temporary / name).parent.mkdir(exist_ok=True)
            (temporary / name).write_text(text, encoding="utf-8", newline="\n")
            names.append(name)
        temporary.rename(folder)
    return names
