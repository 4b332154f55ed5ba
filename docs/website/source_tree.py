"""Writes the pages of the repository as the site's source, with every link leading to a page of the site."""

import ast
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from website.markdown import relative, relinked, with_room_for_lists
from website.places import EXPLORER, ROOT, place

LANGUAGES = {".py": "python", ".yaml": "yaml", ".sh": "sh", ".js": "js", ".css": "css", ".html": "html"}


@dataclass
class SourceTree:
    """The site's source while it is written.

    Args:
        folder: Where it goes.
        root: Of the repository.
        link_names: Makes the names on a page lead to the reference.
        written: The files that are there by now, from the folder's root.
    """

    folder: Path
    root: Path = ROOT
    link_names: Callable[[str], str] = str
    written: list[str] = field(default_factory=list)

    def write(self, name: PurePosixPath, text: str) -> None:
        """Write a page."""
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        self.written.append(name.as_posix())

    def add_pages(self, pages: Iterable[PurePosixPath]) -> None:
        """Write pages of the repository, and all files that they link to."""
        waiting = list(pages)
        seen = set(waiting)
        while waiting:
            path = waiting.pop(0)
            linked = self._add(path)
            waiting += sorted(linked - seen)
            seen |= linked

    def _add(self, path: PurePosixPath) -> set[PurePosixPath]:
        """Write one file, and return those that it links to."""
        new, linked = place(path, self._start), set[PurePosixPath]()
        if path.is_relative_to(EXPLORER):
            return linked
        if path.suffix in {".png", ".svg"}:
            (self.folder / new).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.root / path, self.folder / new)
            self.written.append(new.as_posix())
            return linked

        def change(target: str) -> str:
            full = PurePosixPath(*_normal((path.parent / target).parts))
            if not (self.root / full).exists():
                raise FileNotFoundError(f"{path} links to {target}, and there is no {full}")
            linked.add(full)
            return relative(place(full, self._start), new)

        is_page = path.suffix == ".md"
        text = relinked((self.root / path).read_text(encoding="utf-8") if is_page else self._shown(path), change)
        self.write(new, self.link_names(with_room_for_lists(text)) if is_page else text)
        return linked

    @property
    def _start(self) -> bool:
        return (self.root / "docs" / "start.md").is_file()

    def _shown(self, path: PurePosixPath) -> str:
        """Return a page that shows a file as it is, or what a folder holds."""
        target = self.root / path
        if not target.is_dir():
            language = LANGUAGES.get(path.suffix, "text")
            return f"# {path}\n\n````{language}\n{target.read_text(encoding='utf-8').rstrip()}\n````\n"
        files = [file for file in sorted(target.iterdir()) if file.is_file() and file.suffix in LANGUAGES]
        lines = [f"- [{file.name}]({path.name}/{file.name}){_summary(file)}" for file in files]
        return f"# {path}/\n\n" + "\n".join(lines) + "\n"


def _normal(parts: Iterable[str]) -> list[str]:
    """Return a path's parts without ``..``."""
    kept: list[str] = []
    for part in parts:
        if part == "..":
            kept.pop()
        else:
            kept.append(part)
    return kept


def _summary(file: Path) -> str:
    """Return the first line that a file says of itself, behind a colon; empty if it says nothing."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        said = (ast.get_docstring(ast.parse(text)) or "").split("\n")[0]
    else:
        said = text.split("\n")[0].lstrip("# ") if text.startswith("#") else ""
    return f": {said}" if said else ""
