"""docs/kernels.md is what its generator writes of the record, and its text is true of the code."""

import importlib
import json
import re
from pathlib import Path

import pytest

from lit_gelu.activations.gpu import routes

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = DOCS / "kernels.md"
RECORD = json.loads((DOCS / "data" / "kernels.json").read_text())


@pytest.fixture
def generator(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("make_kernels")


def test_the_page_is_not_stale(generator):
    assert PAGE.read_text() == generator.page(), "Run `make docs`."


def test_the_record_is_whole_and_within_the_limits():
    rows = RECORD["static"]["templates"]
    assert {row["dtype"] for row in rows} == {"bf16", "fp16"}
    assert {row["sm"] for row in rows} == {80, 90, 100, 120}
    assert all(row["instructions"] <= row["limit"] and row["beside_registers"] == 0 for row in rows)
    assert not RECORD["quick"]
    kernels = [row for row in RECORD["values"]["rows"] if row["way"] == "kernel"]
    assert len(kernels) >= 18
    assert all(row["value_ulp"] <= 0.55 and row["slope_ulp"] <= 0.51 for row in kernels)


def test_the_record_has_every_kernel():
    pytest.importorskip("triton", reason="Triton has no build for this system")
    from compiled_kernels import template_cases

    found = {(row["template"], row["function"], row["limit"]) for row in RECORD["static"]["templates"]}
    wanted = {(case.template, case.function, case.most) for case in template_cases("bf16")}
    assert found == wanted, "Run benchmarks/kernels.py --static --values --json docs/data/kernels.json, then make docs."


def test_every_kernel_is_on_the_page():
    page = PAGE.read_text()
    for row in RECORD["static"]["templates"]:
        assert f"| `{row['template']}` | {row['function']} |" in page


def test_where_kernels_run_is_said_as_it_is():
    page = PAGE.read_text()
    assert f"{routes.THRESHOLD:,} elements or more" in page
    assert f"compute capability {'.'.join(map(str, routes._OLDEST))} or newer" in page


def test_its_commands_are_taken(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    kernels = importlib.import_module("kernels")
    commands = re.findall(r"benchmarks/kernels\.py([^#`\n]*)", PAGE.read_text())
    assert len(commands) == 4
    for arguments in commands:
        kernels.parse([*arguments.split(), "--device", "cuda"])


def test_the_generator_refuses_a_template_with_other_names(generator, monkeypatch, tmp_path):
    (tmp_path / "page.md").write_text("{{value_table}} {{no_such_table}}")
    monkeypatch.setattr(generator, "TEMPLATE", tmp_path / "page.md")
    with pytest.raises(ValueError, match=r"not computed: \['no_such_table'\]"):
        generator.page()
