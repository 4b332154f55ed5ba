"""docs/activations.md is what its generator writes now."""

import difflib
import importlib
import json
import math
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


NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?")


def _same(found, wanted):
    """Compare two lines: the words exactly, the numbers to what another processor's last digits may change."""
    if NUMBER.split(found) != NUMBER.split(wanted):
        return False
    pairs = zip(NUMBER.findall(found), NUMBER.findall(wanted), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=1e-5, abs_tol=1e-14) for a, b in pairs)


def test_the_page_is_not_stale(generator):
    found, wanted = PAGE.read_text().splitlines(), generator.page().splitlines()
    changed = "\n".join(difflib.unified_diff(found, wanted, "docs/activations.md", "now", lineterm="", n=0))
    assert len(found) == len(wanted), f"Run `make docs`.\n{changed}"
    assert all(map(_same, found, wanted)), f"Run `make docs`.\n{changed}"


@pytest.mark.parametrize(
    ("found", "wanted"), [("f'(0) is 0.5", "f'(0) is 0.501"), ("0.5 here", "0.5 there"), ("a", "a 1")]
)
def test_a_changed_word_or_number_is_seen(found, wanted):
    assert _same(found, found)
    assert not _same(found, wanted)


def test_every_plot_is_there(generator):
    asked = set(re.findall(r"\((images/[^)]+)\)", PAGE.read_text()))
    plots = importlib.import_module("_plots")
    assert len(asked) == len(plots.GROUPS) + 3  # Monte Carlo, sigma, Cauchy
    assert all((DOCS / path).read_bytes().startswith(b"\x89PNG") for path in asked)


def test_the_generator_refuses_a_template_with_other_names(generator, monkeypatch, tmp_path):
    (tmp_path / "page.md").write_text("{{family_table}} {{no_such_number}}")
    monkeypatch.setattr(generator, "TEMPLATE", tmp_path / "page.md")
    for name in ("family", "claims", "records"):
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


@pytest.mark.full  # a new release of theirs may say something else
def test_the_architectures_are_what_the_installed_libraries_say(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    recorder = importlib.import_module("record_architectures")
    record = json.loads((DOCS / "data" / "architectures.json").read_text())
    for row, now in zip(record["rows"], recorder.of_transformers(), strict=False):
        assert {**row, "source": ""} == {**now, "source": ""}
    assert len(record["rows"]) == len(recorder.TRANSFORMERS) + len(recorder.TIMM)
    assert f"transformers {record['versions']['transformers']}" in PAGE.read_text()
