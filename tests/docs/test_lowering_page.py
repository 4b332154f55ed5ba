"""docs/lowering.md is what its generator writes now, and says what the table says."""

import importlib
from pathlib import Path

import pytest

from lit_gelu.export.lowering import policy
from lit_gelu.export.lowering.lowering_table import TABLE
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


def test_every_row_and_its_traps_are_on_it():
    page = PAGE.read_text()
    assert all(f"| `{row}` |" in page for row in TABLE)
    assert "microsoft.ScaledSiLU(x, alpha=1.0)` | ort-cuda: fp16 strict, bf16 strict |" in page


def test_the_bounds_in_its_prose_are_the_policys():
    page = " ".join(PAGE.read_text().split())
    for bound in (f"{policy.TWO_ROUNDINGS:g}) plus", f"{policy.FP32_ERROR:g}", f"within {policy.FAST_ULP:g} units"):
        assert bound in page
    for opset in (f"is {policy.DEFAULT_OPSET}, the", f"are {policy.OLDEST_OPSET} to {policy.NEWEST_OPSET}, for"):
        assert opset in page


def test_a_page_without_a_block_is_refused(generator, monkeypatch, tmp_path):
    (tmp_path / "page.md").write_text("<!-- other: x -->\n<!-- end of other -->\n")
    monkeypatch.setattr(generator, "PAGE", tmp_path / "page.md")
    with pytest.raises(ValueError, match="blocks"):
        generator.page()
