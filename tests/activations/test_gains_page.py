"""The page on gains holds what its commands print."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _benchmark():
    spec = importlib.util.spec_from_file_location("benchmark_of_gains", ROOT / "benchmarks" / "gains.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["gains", "deviation"])
def test_the_page_holds_the_table(name):
    page = (ROOT / "docs" / "gains.md").read_text(encoding="utf-8")
    command = f"`python benchmarks/gains.py {name}`"
    assert f"{command}\n\n{_benchmark().TABLES[name]()}\n" in page, f"docs/gains.md is stale: {command}"
