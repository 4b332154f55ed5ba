"""The pages of the reference: one a public room of the package, with everything that it exports."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import griffe

from website.places import REFERENCE
from website.source_tree import SourceTree

KINDS = ("Functions", "Classes", "Errors and warnings", "Values")


@dataclass(frozen=True)
class Room:
    """A part of the package that people import from.

    Args:
        name: Its dotted name.
        modules: Modules inside it that have a part of the page each, for what the room itself does not export.
    """

    name: str
    modules: tuple[str, ...] = ()

    @property
    def page(self) -> str:
        """The page's name in the site's source."""
        return f"{REFERENCE}/{self.name.removeprefix('lit_gelu.').replace('.', '_')}.md"


ROOMS = (
    Room("lit_gelu.activations"),
    Room("lit_gelu.activations.functional"),
    Room("lit_gelu.activations.modules"),
    Room("lit_gelu.surgery"),
    Room("lit_gelu.kernels"),
    Room("lit_gelu.curvature"),
    Room("lit_gelu.callbacks"),
    Room("lit_gelu.tasks"),
    Room("lit_gelu.data"),
    Room("lit_gelu.replicas"),
    Room("lit_gelu.choose"),
    Room("lit_gelu.export"),
    Room("lit_gelu.audit"),
    Room("lit_gelu.testing"),
    Room("lit_gelu.report"),
    Room("lit_gelu.errors"),
)


def load(folder: Path) -> griffe.Module:
    """Read the package in a folder, without importing it."""
    loader = griffe.GriffeLoader(search_paths=[folder])
    package = loader.load("lit_gelu", try_relative_path=False)  # else the sources beside the command are taken
    loader.resolve_aliases(implicit=False, external=False)
    if not isinstance(package, griffe.Module):
        raise TypeError(f"{folder} holds no package lit_gelu")
    return package


def exported(module: griffe.Object | griffe.Alias) -> list[str]:
    """Return the public names of a module: what ``__all__`` lists, or else what it defines itself."""
    if module.exports is not None:
        return [str(name) for name in module.exports]
    return [
        name
        for name, member in module.members.items()
        if not name.startswith("_") and not member.is_alias and not member.is_module and member.has_docstring
    ]


def public_member(module: griffe.Object | griffe.Alias, name: str) -> tuple[str, griffe.Object | griffe.Alias]:
    """Return what a room exports under a name, and its dotted name; a function comes before a module of its name."""
    member = module.members[name]
    path = f"{module.canonical_path if module.is_alias else module.path}.{name}"
    inner = f"{path}.{name}"
    if not member.is_alias and member.is_module and module.imports.get(name) == inner:
        return inner, member.members[name]
    return path, member


def _kind(member: griffe.Object | griffe.Alias) -> str:
    """Return the part of a page in which a name stands."""
    if member.is_module:
        return ""
    if member.is_function:
        return "Functions"
    if member.is_class:
        ancestors = {str(base).rpartition(".")[2] for base in getattr(member, "bases", ())}
        said = member.name.endswith(("Error", "Warning")) or any(name.endswith("Error") for name in ancestors)
        return "Errors and warnings" if said else "Classes"
    return "Values"


def _parts(module: griffe.Object | griffe.Alias, level: str) -> Iterable[str]:
    """Give the parts of a page: one a kind of thing, with its names in the order of the alphabet."""
    by_kind: dict[str, list[tuple[str, str]]] = {}
    for name in sorted(exported(module), key=str.lower):
        path, member = public_member(module, name)
        by_kind.setdefault(_kind(member), []).append((name, path))
    for kind in KINDS:
        if kind in by_kind:
            yield f"{level} {kind}\n"
            for name, path in by_kind[kind]:
                yield f"::: {path}\n    options:\n      heading: {name}\n      heading_level: {len(level) + 1}\n"


def page(room: Room, package: griffe.Module) -> str:
    """Return the page of a room.

    Args:
        room: Which one.
        package: The package as `load` read it.

    Returns:
        Markdown for mkdocstrings.
    """
    module = package[room.name.removeprefix("lit_gelu.")]
    said = module.docstring.value if module.docstring else ""
    lines = [f"# {room.name}\n", f"{said}\n", *_parts(module, "##")]
    for name in room.modules:
        inner = module[name]
        lines += [f"## {room.name}.{name}\n", f"{inner.docstring.value if inner.docstring else ''}\n"]
        lines += _parts(inner, "###")
    return "\n".join(lines)


def index(rooms: Sequence[Room], package: griffe.Module) -> str:
    """Return the first page of the reference."""
    lines = ["# Reference\n", "Everything that is public, by the place it is imported from.\n"]
    for room in rooms:
        docstring = package[room.name.removeprefix("lit_gelu.")].docstring
        first = docstring.value.split("\n\n")[0].replace("\n", " ") if docstring else ""
        lines.append(f"- [`{room.name}`]({room.page.removeprefix(f'{REFERENCE}/')}): {first}")
    return "\n".join(lines) + "\n"


def write(tree: SourceTree, package: griffe.Module) -> list[str]:
    """Write the reference, and return its pages, the index first."""
    rooms = rooms_of(package)
    tree.write(PurePosixPath(REFERENCE, "index.md"), index(rooms, package))
    for room in rooms:
        tree.write(PurePosixPath(room.page), page(room, package))
    return [f"{REFERENCE}/index.md", *(room.page for room in rooms)]


def rooms_of(package: griffe.Module) -> list[Room]:
    """Return the rooms that this package has."""
    return [room for room in ROOMS if _has(package, room.name)]


def _has(package: griffe.Module, name: str) -> bool:
    try:
        package[name.removeprefix("lit_gelu.")]
    except KeyError:
        return False
    return True
