"""How large the project may be: ceilings that only go down. What does not fit needs something else to go first.

A larger package is harder to hold in one head than it is to write; docs/limits.md says what was left out for that.
"""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = [path for folder in ("lit_gelu", "callbacks", "export") for path in (ROOT / folder).rglob("*.py")]
TESTS = list((ROOT / "tests").rglob("*.py"))


FOLDERS = [ROOT / ".github", ROOT / "docs", ROOT / "examples"]
PAGES = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in folder.rglob("*.md"))]


def _lines(paths):
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def _words(paths):
    # What an example installs for itself is none of ours.
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths if "node_modules" not in path.parts)


@pytest.mark.parametrize(
    ("what", "size", "ceiling"),
    [
        ("lines of the package", _lines(PACKAGE), 41_140),
        ("files of the package", len(PACKAGE), 233),
        ("lines of the tests", _lines(TESTS), 36_000),
        ("words of Markdown", _words(PAGES), 36_850),
    ],
)
def test_the_project_stays_small(what, size, ceiling):
    assert size <= ceiling, f"{what}: {size}, of at most {ceiling}"
