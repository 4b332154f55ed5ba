"""docs/activations.md is what its generator writes now."""

import difflib
import importlib
import json
import re
from pathlib import Path

import pytest

from lit_gelu import activations

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = DOCS / "activations.md"


@pytest.fixture
def generator(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("make_activations")


def test_the_page_is_not_stale(generator):
    wanted, found = generator.page(), PAGE.read_text()
    changed = difflib.unified_diff(
        found.splitlines(), wanted.splitlines(), "docs/activations.md", "now", lineterm="", n=0
    )
    assert found == wanted, "Run `make docs`.\n" + "\n".join(changed)


def test_every_plot_is_there(generator):
    asked = set(re.findall(r"\((images/[^)]+)\)", PAGE.read_text()))
    plots = importlib.import_module("_plots")
    assert len(asked) == len(plots.GROUPS) + 4
    assert all((DOCS / path).read_bytes().startswith(b"\x89PNG") for path in asked)


def test_the_generator_refuses_a_template_with_other_names(generator, monkeypatch, tmp_path):
    (tmp_path / "page.md").write_text("{{family_table}} {{no_such_number}}")
    monkeypatch.setattr(generator, "TEMPLATE", tmp_path / "page.md")
    for name in ("family", "claims", "tutorial", "records"):
        monkeypatch.setattr(generator, name, lambda name=name: {f"{name}_table": ""})
    with pytest.raises(ValueError, match=r"not computed: \['no_such_number'\]; not asked for: \['claims_table'"):
        generator.page()


def test_the_cost_record_is_of_activations_that_exist_and_names_its_machine():
    record = json.loads((DOCS / "data" / "activation_cost.json").read_text())
    specs = [row["spec"] for row in record["activations"]]
    assert specs == [str(activations.resolve(spec)) for spec in specs]
    assert len(specs) == len(set(specs)) > 30
    assert {"device", "torch", "dtype", "elements"} <= set(record["machine"])
    assert all(row["module saved"] >= 0 and row["checkpoint saved"] > 0 for row in record["activations"])


def test_the_architectures_are_what_the_installed_libraries_say(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    recorder = importlib.import_module("record_architectures")
    record = json.loads((DOCS / "data" / "architectures.json").read_text())
    for row, now in zip(record["rows"], recorder.of_transformers(), strict=False):
        assert {**row, "source": ""} == {**now, "source": ""}
    assert len(record["rows"]) == len(recorder.TRANSFORMERS) + len(recorder.TIMM)
    assert f"transformers {record['versions']['transformers']}" in PAGE.read_text()
