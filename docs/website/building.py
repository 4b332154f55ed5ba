"""Builds the site from its parts with MkDocs."""

import shutil
from pathlib import Path

from make_explorer import NoRuntimeError, build_explorer
from mkdocs.commands.build import build
from mkdocs.config import load_config

from website import gallery, reference
from website.places import ROOT, menu, pages
from website.public_names import bind_methods, by_short_name, public_paths, with_links
from website.source_tree import SourceTree

BUILD = ROOT / "build" / "website"
SOURCE, CODE, SITE = (BUILD / name for name in ("source", "code", "site"))
ASSETS = ROOT / "docs" / "website" / "assets"


def copy_package(folder: Path) -> None:
    """Copy the package to one folder, as it is installed, where griffe finds all of it."""
    shutil.rmtree(folder, ignore_errors=True)
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "lit_gelu", folder / "lit_gelu", ignore=skipped)
    for name in ("callbacks", "export"):
        shutil.copytree(ROOT / name, folder / "lit_gelu" / name, ignore=skipped)


def write_source(folder: Path, code: Path) -> list[dict[str, object]]:
    """Write all pages, and return the site's menu."""
    shutil.rmtree(folder, ignore_errors=True)
    package = reference.load(code)
    bind_methods(package)
    paths = public_paths(package)
    find = {**by_short_name(paths), **paths}.get
    tree = SourceTree(folder, link_names=lambda text: with_links(text, find))
    tree.add_pages(pages())
    written = [name for name in tree.written if name.endswith(".md")]
    shown = gallery.write(tree)
    tables = folder / "activations.md"
    tables.write_text(gallery.with_pages(tables.read_text(encoding="utf-8")), encoding="utf-8")
    rooms = reference.write(tree, package)
    shutil.copytree(ASSETS, folder / "assets")
    return menu(written, shown, rooms, _add_explorer(folder / "explorer"))


def _add_explorer(folder: Path) -> bool:
    """Put the explorer into the site, and return whether it could be: npm brings what runs its files."""
    try:
        build_explorer(folder)
    except NoRuntimeError as error:
        print(f"the site is built without the explorer: {error}")
        return False
    return True


def build_site() -> Path:
    """Build the site, and return its folder; whatever MkDocs warns of is an error."""
    copy_package(CODE)
    nav = write_source(SOURCE, CODE)
    build(load_config(str(ROOT / "mkdocs.yml"), nav=nav, strict=True))
    return SITE
