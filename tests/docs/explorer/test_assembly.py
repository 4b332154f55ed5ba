"""The explorer's folder holds the page, its files and what runs them, under names that every server knows."""

import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def maker(monkeypatch, tmp_path):
    """The script, with a stand-in for what npm brings."""
    monkeypatch.syspath_prepend(str(DOCS))
    maker = importlib.import_module("make_explorer")
    monkeypatch.setattr(maker, "RUNTIME", tmp_path / "dist")
    maker.RUNTIME.mkdir()
    for name in maker.RUNTIME_FILES:
        (maker.RUNTIME / name).write_text(name)
    return maker


def test_the_folder_holds_what_the_page_names(maker, tmp_path):
    folder = tmp_path / "explorer"
    (folder / "old").mkdir(parents=True)
    maker.build_explorer(folder)
    assert not (folder / "old").exists()
    page = (folder / "index.html").read_text()
    modules = [*folder.glob("*.js")]
    assert len(modules) > 8
    named = [folder / name for name in re.findall(r'(?:src|href)="([\w./]+)"', page) if not name.startswith("..")]
    named += [path.parent / name for path in modules for name in re.findall(r'from "(\./[\w./]+)"', path.read_text())]
    named += [
        folder / "ort" / name for name in re.findall(r'runtime\("([\w.]+)"\)', (folder / "curves.js").read_text())
    ]
    assert len(named) > 15
    assert [path.name for path in named if not path.is_file()] == []
