"""Pages that scripts write are what these write now, and say what is so."""

import difflib
import importlib
import json
import math
import re
from pathlib import Path

import mpmath
import pytest
import torch

from lit_gelu.export.lowering.policy import has_contrib_operator

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?")


@pytest.fixture
def module(monkeypatch):
    """Imports a script of docs or benchmarks."""
    for folder in ("docs", "benchmarks"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    return importlib.import_module


def _same(line, expected):
    """Compare two lines: the words exactly, the numbers to what another processor's last digits may change."""
    if NUMBER.split(line) != NUMBER.split(expected):
        return False
    pairs = zip(NUMBER.findall(line), NUMBER.findall(expected), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=1e-5, abs_tol=1e-14) for a, b in pairs)


@pytest.mark.parametrize("name", ["activations", "architectures", "gpu", "lowering", "who_computes_what"])
def test_a_page_is_not_stale(name, module):
    if name == "lowering" and not has_contrib_operator("com.microsoft::ScaledSiLU"):
        pytest.skip("the page is of an onnxruntime with every operator (1.31)")
    lines, expected = (DOCS / f"{name}.md").read_text().splitlines(), module(f"make_{name}").page().splitlines()
    changed = "\n".join(difflib.unified_diff(lines, expected, f"docs/{name}.md", "now", lineterm="", n=0))
    assert len(lines) == len(expected), f"Run `make docs`.\n{changed}"
    assert all(map(_same if name == "activations" else str.__eq__, lines, expected)), f"Run `make docs`.\n{changed}"


def test_the_readme_counts_architectures_as_the_record_does(module):
    architectures = module("architectures")
    rows = architectures.rows_of(json.loads(architectures.RECORD.read_text()))
    exported = {what: sum(architectures.is_exported(row, what) for row in rows) for what in ("ours", "plain")}
    readme = " ".join((ROOT / "README.md").read_text().split())
    expected = f"Of {len(rows)} architectures of transformers, timm and torchvision {exported['ours']} are exported and"
    assert f"{expected} proved, {exported['plain']} by plain `torch.onnx.export`" in readme
    assert all(row["seen"] == row["calls"] for row in rows)
    assert all(row["parity"] for row in rows if architectures.is_exported(row, "ours"))


def test_every_runtime_has_its_version_and_its_rows_in_the_record(module):
    runtimes = {runtime.name: runtime for runtime in module("_runtimes").RUNTIMES}
    record = json.loads((DOCS / "data" / "who_computes_what.json").read_text())
    assert record["versions"].keys() == runtimes.keys() == {row["runtime"] for row in record["rows"]}
    for row in record["rows"]:
        assert row["dtype"] in runtimes[row["runtime"]].dtypes
        assert -8 <= row["at"] <= 8


def test_the_largest_error_is_that_of_mpmath(module):
    # torch's erf form cancels in the left tail: 0.5 x (1 + erf(x / sqrt(2))) in float16 arithmetic
    def cancelling(x):
        return x * torch.special.ndtr(x.float()).half()

    largest, place = module("make_who_computes_what").largest_error(cancelling, "gelu", "float16")
    x = torch.tensor(place, dtype=torch.float16)
    true = x.item() * mpmath.ncdf(x.item())
    unit = mpmath.mpf(2) ** max(mpmath.floor(mpmath.log(abs(true), 2)) - 10, -24)
    assert largest == pytest.approx(float(abs(cancelling(x).item() - true) / unit), rel=1e-6)
    assert largest > 1


@pytest.mark.full  # a new release of theirs may say something else
def test_the_architectures_are_what_the_installed_libraries_say(module):
    recorder = module("record_architectures")
    record = json.loads((DOCS / "data" / "architectures.json").read_text())
    for row, now in zip(record["rows"], recorder.of_transformers(), strict=False):
        assert {**row, "source": ""} == {**now, "source": ""}
    assert len(record["rows"]) == len(recorder.TRANSFORMERS) + len(recorder.TIMM)
    assert f"transformers {record['versions']['transformers']}" in (DOCS / "activations.md").read_text()


def test_the_stages_and_options_that_the_page_on_gpus_names_are_those_of_the_script(module):
    gpu, page = module("gpu"), (DOCS / "gpu.md").read_text()
    named = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", page, re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(named)) == list(gpu.STAGES)
    options = {option for action in gpu.parser()._actions for option in action.option_strings}
    assert set(re.findall(r"(?<![\w-])--[a-z]+", page)) <= options
    for arguments in re.findall(r"benchmarks/gpu\.py ([^#\n]*)", page) + re.findall(r"GPU='(.*)'", page):
        gpu.parse(arguments.split('"')[0].replace("--commit ", "").split() if '"' in arguments else arguments.split())


@pytest.mark.full
def test_all_pictures_are_drawn_anew(module, tmp_path, monkeypatch):
    pictures = module("make_pictures")
    monkeypatch.setattr(pictures, "IMAGES", tmp_path)
    monkeypatch.setattr("sys.argv", ["make_pictures.py"])
    pictures.main()
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in (DOCS / "images").glob("*.png")}
