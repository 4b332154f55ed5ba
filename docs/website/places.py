"""Where a file of the repository stands on the site, and what the site's menu holds."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
EXPLORER = PurePosixPath("docs/explorer")  # a page of its own, which docs/make_explorer.py assembles
SHOWN = "files"  # the folder of pages that show a file as it is

# Titles of the menu's parts, with their pages in order. What stands in no part goes into the last one.
GUIDES = ("choose", "names", "swapping", "curvature", "report", "export", "export_speed", "providers", "quantization")
GUIDES += (
    "audit",
    "is_my_port_right",
    "who_computes_what",
    "vectors",
    "serving",
    "replicas",
    "gains",
    "command_line",
    "coming_from",
    "installation",
    "limits",
)
PARTS: dict[str, tuple[str, ...]] = {
    "Guides": tuple(f"{name}.md" for name in GUIDES),
    # Of little use to those who only use the package.
    "Project": (
        "numerics.md",
        "lowering.md",
        "kernels.md",
        "guides/use_kernels.md",
        "gpu.md",
        "paper.md",
        "decisions.md",
        "contributing.md",
        "changelog.md",
    ),
}
GALLERY = "gallery"
REFERENCE = "reference"


def place(path: PurePosixPath, start: bool) -> PurePosixPath:
    """Return where a file of the repository stands in the site's source.

    Args:
        path: From the repository's root.
        start: Whether there is a ``docs/start.md``; otherwise the README is the start page.

    Returns:
        From the source's root. Pages and images keep their place below ``docs``; other files become pages that show
        them.

    Example:
        >>> [str(place(PurePosixPath(name), start=False)) for name in ("docs/export.md", "README.md", "Makefile")]
        ['export.md', 'index.md', 'files/Makefile.md']
    """
    first = PurePosixPath("docs/start.md") if start else PurePosixPath("README.md")
    if path == first:
        return PurePosixPath("index.md")
    if path.is_relative_to(EXPLORER):
        return path.relative_to("docs")
    if path.suffix not in {".md", ".png", ".svg"}:
        return PurePosixPath(SHOWN, f"{path}.md")
    if path.parts[0] == "docs":
        return path.relative_to("docs")
    return path if len(path.parts) > 1 else PurePosixPath(path.name.lower())


def pages(root: Path = ROOT) -> list[PurePosixPath]:
    """Return the Markdown pages of the repository that belong on the site, from its root."""
    folders = (root, root / "docs", root / "docs" / "guides", root / "examples" / "web", root / "examples" / "paper")
    found = [path for folder in folders for path in sorted(folder.glob("*.md"))]
    return [PurePosixPath(path.relative_to(root).as_posix()) for path in found]


def menu(names: Iterable[str], gallery: list[str], reference: list[str], explorer: bool) -> list[dict[str, object]]:
    """Return the site's menu as MkDocs takes it.

    Args:
        names: All pages that were written from the repository, by their place in the source.
        gallery: The gallery's pages, its index first.
        reference: The pages of the reference, its index first.
        explorer: Whether the explorer of activations is there.

    Returns:
        One entry a part.
    """
    left = [name for name in names if not name.startswith(f"{SHOWN}/")]
    left.remove("index.md")
    first = [name for name in ("essentials.md",) if name in left]
    guides = first + sorted(name for name in left if name.startswith("guides/") and name not in PARTS["Project"])
    parts: dict[str, list[object]] = {}
    for title, wanted in PARTS.items():
        there = [name for name in wanted if name in left]
        parts[title] = [*guides, *there] if title == "Guides" else list(there)
    # Where the explorer is, its page is one for those who change it; else it says how to have it.
    tables = [name for name in ("activations.md", "explorer.md") if name in left]
    if explorer and "explorer.md" in tables:
        tables.remove("explorer.md")
    placed = {name for part in parts.values() for name in part} | set(tables)
    parts["Project"] += [name for name in left if name not in placed]
    activations: list[object] = [*gallery[:1], *tables, {"All activations": gallery[1:]}]
    if explorer:
        activations.insert(1, {"Explorer": "explorer/index.html"})
    return [
        {"Start": "index.md"},
        {"Guides": parts["Guides"]},
        {"Activations": activations},
        {"Reference": reference},
        {"Project": parts["Project"]},
    ]
