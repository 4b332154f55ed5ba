"""Reads the built site as a browser would, and finds links that lead nowhere."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

_TARGETS = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src", "iframe": "src"}
_LOADED = {"img", "script", "source", "iframe"}


@dataclass
class PageLinks(HTMLParser):
    """What one page links to, and the names inside it that links may lead to.

    Args:
        targets: Where links lead, with the elements that hold them.
        names: The page's anchors.
    """

    targets: list[tuple[str, str]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one element."""
        values = dict(attrs)
        self.names |= {value for key in ("id", "name") if (value := values.get(key))}
        target = values.get(_TARGETS.get(tag, ""))
        if target is not None and values.get("rel") != "canonical":
            loads = tag in _LOADED or (tag == "link" and values.get("rel") in {"stylesheet", "icon", "preload"})
            self.targets.append(("load" if loads else "link", target))


@dataclass(frozen=True)
class SiteLinks:
    """What a check found.

    Args:
        checked: How many links lead within the site.
        broken: Those that lead nowhere, as ``page: target``.
        fetched: What a page loads from elsewhere, which it must not; in the same form.
        outside: Addresses of other sites.
    """

    checked: int
    broken: tuple[str, ...]
    fetched: tuple[str, ...]
    outside: tuple[str, ...]


def read(page: Path) -> PageLinks:
    """Read one page."""
    found = PageLinks()
    found.feed(page.read_text(encoding="utf-8"))
    return found


def check(site: Path) -> SiteLinks:
    """Follow every link of a site that is built.

    Args:
        site: Its folder.

    Returns:
        What was found.

    Raises:
        FileNotFoundError: If there is no page.
    """
    pages = {page: read(page) for page in sorted(site.rglob("*.html"))}
    if not pages:
        raise FileNotFoundError(f"{site} holds no page: `make site` builds it.")
    checked, broken, fetched, outside = 0, [], [], set()
    for page, links in pages.items():
        where = page.relative_to(site).as_posix()
        for kind, target in links.targets:
            if urlsplit(target).scheme in {"http", "https", "mailto"} or target.startswith("//"):
                outside.add(target)
                fetched += [f"{where}: {target}"] if kind == "load" else []
            elif not target.startswith(("data:", "javascript:")):
                checked += 1
                broken += [] if _leads_somewhere(target, page, site, pages) else [f"{where}: {target}"]
    return SiteLinks(checked, tuple(broken), tuple(fetched), tuple(sorted(outside)))


def _leads_somewhere(target: str, page: Path, site: Path, pages: dict[Path, PageLinks]) -> bool:
    """Tell whether a link within the site has a file, and the anchor that it names."""
    path, anchor = urldefrag(target)
    path = unquote(urlsplit(path).path)
    file = (site / path.lstrip("/") if path.startswith("/") else page.parent / path) if path else page
    file = (file / "index.html" if file.is_dir() else file).resolve()
    if not file.is_file():
        return False
    return not anchor or file.suffix != ".html" or bool({anchor, unquote(anchor)} & pages[file].names)
