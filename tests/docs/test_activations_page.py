"""docs/activations.md is what its generator writes now."""

import difflib
import importlib
import json
import math
import re
from pathlib import Path

import pytest

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


@pytest.mark.full  # a new release of theirs may say something else
def test_the_architectures_are_what_the_installed_libraries_say(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    recorder = importlib.import_module("record_architectures")
    record = json.loads((DOCS / "data" / "architectures.json").read_text())
    for row, now in zip(record["rows"], recorder.of_transformers(), strict=False):
        assert {**row, "source": ""} == {**now, "source": ""}
    assert len(record["rows"]) == len(recorder.TRANSFORMERS) + len(recorder.TIMM)
    assert f"transformers {record['versions']['transformers']}" in PAGE.read_text()
