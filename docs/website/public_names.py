"""Makes marked names lead to their place in the reference: in docstrings, as a griffe extension, and on pages."""

import re
from collections.abc import Callable, Iterator, Mapping

import griffe

from website.markdown import prose_lines
from website.reference import exported, public_member, rooms_of

_MARKED = re.compile(r"(?<![\[`])`([A-Za-z_][\w.]*)(\(\))?`(?![`\]])")
_BOUND = {"lit_gelu.activations": ("ActivationRegistry", "registry")}  # names that are methods of one object


def bind_methods(package: griffe.Module) -> None:
    """Let names such as ``create = registry.create`` stand for the methods that they are."""
    for module_name, (class_name, instance) in _BOUND.items():
        module = package[module_name.removeprefix("lit_gelu.")]
        for name, member in list(module.members.items()):
            if isinstance(member, griffe.Attribute) and str(member.value) == f"{instance}.{name}":
                path = module[class_name].all_members[name].canonical_path  # some are inherited
                module.set_member(name, griffe.Alias(name, path, parent=module))  # type: ignore[arg-type]


def public_paths(package: griffe.Module) -> dict[str, str]:
    """Return where each public object is documented: its place in the reference by its canonical dotted name."""
    found: dict[str, str] = {}
    for room in rooms_of(package):
        modules = [package[room.name.removeprefix("lit_gelu.")]]
        modules += [modules[0].members[name] for name in room.modules if name in modules[0].members]
        for module in modules:
            for name in exported(module):
                path, member = public_member(module, name)
                if not member.is_module:
                    found.setdefault(member.canonical_path, path)
                    found |= {path: path, f"{room.name}.{name}": path}
                    if member.is_class:
                        found.update(_members(member, path))
    return found


def _members(member: griffe.Object | griffe.Alias, path: str) -> Iterator[tuple[str, str]]:
    """Give the public methods and attributes of a class, by both dotted names."""
    for name, inner in member.members.items():
        if not name.startswith("_") and not inner.is_alias and inner.has_docstring:
            yield inner.canonical_path, f"{path}.{name}"
            yield f"{path}.{name}", f"{path}.{name}"


def by_short_name(paths: Mapping[str, str]) -> dict[str, str]:
    """Return the places of names that a page may write alone: those that no word and no other name can be."""
    short: dict[str, set[str]] = {}
    for path in paths.values():
        short.setdefault(path.rpartition(".")[2], set()).add(path)
    return {name: next(iter(places)) for name, places in short.items() if len(places) == 1 and _is_special(name)}


def _is_special(name: str) -> bool:
    return "_" in name.strip("_") or bool(re.search(r"[a-z][A-Z]|[A-Z]{2}[a-z]", name))


def with_links(text: str, find: Callable[[str], str | None]) -> str:
    """Return a page in which each marked name that is documented leads there; headings, links and code are left alone.

    Args:
        text: Markdown.
        find: From a name to its place in the reference, ``None`` if it has none.

    Returns:
        The new text.

    Example:
        >>> with_links("`Swap` and `x`", {"Swap": "a.Swap"}.get)
        '[`Swap`][a.Swap] and `x`'
    """

    def link(match: re.Match[str]) -> str:
        place = find(match[1])
        return f"[{match[0]}][{place}]" if place else match[0]

    lines = []
    for line, prose in prose_lines(text):
        is_text = prose and not line.startswith(("#", "    ")) and "](" not in line
        lines.append(_MARKED.sub(link, line) if is_text else line)
    return "\n".join(lines)


class DocstringLinks(griffe.Extension):
    """Changes docstrings for the site: marked names become links, and an example becomes the section of that name."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: object) -> None:
        """Change the docstrings of a package once all of it is read."""
        if pkg.name != "lit_gelu":
            return
        loader.resolve_aliases(implicit=False, external=False)
        bind_methods(pkg)
        paths = public_paths(pkg)
        for item in _objects(pkg):
            if item.docstring is not None:
                item.docstring.value = _changed(item.docstring.value, item, paths)


def _objects(item: griffe.Object) -> Iterator[griffe.Object]:
    """Give an object and all that it holds."""
    yield item
    for member in item.members.values():
        if isinstance(member, griffe.Object):
            yield from _objects(member)


def _changed(text: str, item: griffe.Object, paths: Mapping[str, str]) -> str:
    short = by_short_name(paths)

    def find(name: str) -> str | None:
        if name in paths:
            return paths[name]
        try:
            found = paths.get(item.resolve(name))
        except griffe.NameResolutionError:
            found = None
        owner, _, method = name.rpartition(".")
        return found or short.get(name) or paths.get(f"{short.get(owner)}.{method}")

    text = re.sub(r"^(\s*)Example:$", r"\1Examples:", text, flags=re.MULTILINE)
    return with_links(text, find)
