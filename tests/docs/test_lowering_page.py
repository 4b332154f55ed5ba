"""docs/lowering.md is what its generator writes now, and says what the table says."""

import importlib
from pathlib import Path

import pytest

from lit_gelu.export.lowering.policy import has_contrib_operator

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "lowering.md"


@pytest.fixture
def generator(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("make_lowering")


@pytest.mark.skipif(
    not has_contrib_operator("com.microsoft::ScaledSiLU"),
    reason="the page is of an onnxruntime with every operator (1.31)",
)
def test_the_page_is_not_stale(generator):
    assert PAGE.read_text() == generator.page(), "Run `make docs`."
