"""The pictures of the README and the start page are drawn by docs/make_pictures.py, small, and each is on a page."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture
def pictures(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(DOCS))
    module = importlib.import_module("make_pictures")
    monkeypatch.setattr(module, "IMAGES", tmp_path)
    return module


def names():
    return set(re.findall(r'^    save\(.*, "(\w+)"\)$', (DOCS / "make_pictures.py").read_text(), re.MULTILINE))


def test_each_picture_is_there_and_small():
    assert len(names()) == 6
    for name in names():
        content = (DOCS / "images" / f"{name}.png").read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) <= 60_000


@pytest.mark.full
def test_all_are_drawn_anew(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["make_pictures.py"])
    pictures.main()
    assert {path.stem for path in tmp_path.iterdir()} == names()
