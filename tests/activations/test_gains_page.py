"""The page on gains holds what its commands print."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["gains", "deviation"])
def test_the_page_holds_the_table(name):
    page = (ROOT / "docs" / "gains.md").read_text(encoding="utf-8")
    tables = runpy.run_path(str(ROOT / "benchmarks" / "gains.py"))["TABLES"]
    command = f"`python benchmarks/gains.py {name}`"
    assert f"{command}\n\n{tables[name]()}\n" in page, f"docs/gains.md is stale: {command}"
