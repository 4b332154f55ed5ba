"""The pictures of the README and the start page are drawn by docs/make_pictures.py, small, and each is on a page."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

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


def test_a_picture_that_is_too_large_is_refused(pictures, tmp_path):
    figure = Figure(figsize=(4, 4))
    figure.subplots().imshow(np.random.default_rng(0).random((300, 300)))
    with pytest.raises(ValueError, match=r"noise.png would have .* at most 60,000"):
        pictures.save(figure, "noise")
    assert not list(tmp_path.iterdir())


def test_curves_are_broken_where_a_derivative_jumps(pictures):
    axes = Figure().subplots()
    pictures.draw_functions(axes, 1)
    relu = next(line for line in axes.lines if line.get_label() == "ReLU")
    steps = np.abs(np.diff(relu.get_ydata()))
    assert np.nanmax(steps) == 0
    assert np.isnan(relu.get_ydata()).sum() == 1


@pytest.mark.full
def test_all_are_drawn_anew(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["make_pictures.py"])
    pictures.main()
    assert {path.stem for path in tmp_path.iterdir()} == names()
