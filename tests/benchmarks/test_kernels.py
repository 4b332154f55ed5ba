"""``benchmarks/kernels.py`` makes its table; what times are is not asserted."""

import importlib
from pathlib import Path

import pytest
from compiled_activations import compiled  # noqa: F401 - a fixture

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.full
@pytest.mark.usefixtures("compiled")
def test_the_table_has_a_row_for_each_case(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(FOLDER))
    importlib.import_module("kernels").main(["--elements", "4096", "--rounds", "1", "--cases", "1"])
    last = capsys.readouterr().out.splitlines()[-1].split(" | ")
    assert last[:2] == ["gelu", "bfloat16"]
    assert last[4] == "formula"
    assert float(last[6]) < 1 < float(last[5])
