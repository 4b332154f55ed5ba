"""docs/gpu.md is what its generator writes of the records that there are, and its text is true of the script."""

import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = DOCS / "gpu.md"
FIGURES = {
    "parity": {
        "gelu, fp16": {
            "refused": "ProviderError: two nodes",
            "on_cpu": ["Elu node_1"],
            "copies": {"MemcpyToHost": 2},
            "passed": False,
            "reasons": ["1 comparison"],
            "error": 0.00125,
            "own_error": None,
        },
        "gelu, fp32": {"refused": "", "on_cpu": [], "copies": {}, "passed": True},
    },
    "export": {
        "block, exact, batch 8192": {
            "net": "block",
            "form": "exact",
            "batch_size": 8192,
            "rows": [{"variant": "onnxruntime fast", "in_a_row": 0.25, "in_a_row_ratio": 1.0625, "error": 0.001}],
        }
    },
    "cifar10": {"milliseconds a step": {"milliseconds": {"nothing": 8.5}, "beside nothing": {"nothing": 1.0}}},
    "wrn": {},
}
LINES = {
    "parity": ["1 of 2 files passed. 1 have", "| gelu, fp16 | 1 comparison | 0.0013 |  |"],
    "export": ["| block, exact, 8192 | onnxruntime fast | 0.25 | 1.06 | 0.001 |"],
    "cifar10": ["| nothing | 8.5 | 1 |"],
    "wrn": [],
}


def record(stage, **changes):
    return {
        "stage": stage,
        "device": "cuda",
        "quick": False,
        "calls": [{"seconds": 200.0}, {"seconds": 10.4}],
        "machine": {"device": "NVIDIA H200", "driver": "580.1"},
        "versions": {"torch": "2.11.0", "cuda": "13.0", "triton": None},
        "commit": "0123456789abcdef",
        "sources": "fedcba",
        "figures": FIGURES[stage],
        "left_out": [],
        "failed": [],
        "error": None,
        "data": "real",
        **changes,
    }


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Writes records and returns what the page says of them."""
    monkeypatch.syspath_prepend(str(DOCS))
    module = importlib.import_module("_gpu_records")

    def make(*records):
        for content in records:
            (tmp_path / f"gpu-{content['stage']}.json").write_text(json.dumps(content))
        return module.gpu_records(tmp_path)

    return make


def test_the_page_is_not_stale(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    assert PAGE.read_text() == importlib.import_module("make_gpu").page(), "Run `make docs`."


def test_every_stage_has_its_section_in_their_order(made):
    text = made(*(record(stage) for stage in reversed(FIGURES)))
    assert re.findall(r"^### (.*)$", text, re.MULTILINE) == list(FIGURES)
    sections = dict(zip(FIGURES, re.split(r"^### .*$", text, flags=re.MULTILINE)[1:], strict=True))
    for stage, lines in LINES.items():
        assert all(line in sections[stage] for line in lines)
        assert "NVIDIA H200, torch 2.11.0; commit 0123456789ab." in sections[stage]


def test_what_failed_and_what_is_missing_is_told(made):
    failed, left = [{"what": "block", "error": "ValueError: no\nfile.py:3"}], [{"what": "wrn", "why": "no time: later"}]
    text = made(record("export", error="did not end within its 220 s\nmore", failed=failed, left_out=left * 2))
    for line in ("- ended early: did not end within its 220 s", "- failed: block: ValueError: no", "no time: 2"):
        assert line in text


@pytest.mark.parametrize("change", [{"device": "cpu"}, {"quick": True}])
def test_figures_of_a_cpu_or_of_small_sizes_are_refused(made, change):
    with pytest.raises(ValueError):  # noqa: PT011 - the script's own
        made(record("export", **change))


def test_the_stages_and_options_that_it_names_are_those_of_the_script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    gpu = importlib.import_module("gpu")
    page = PAGE.read_text()
    named = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", page, re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(named)) == list(gpu.STAGES)
    options = {option for action in gpu.parser()._actions for option in action.option_strings}
    assert set(re.findall(r"(?<![\w-])--[a-z]+", page)) <= options
    for arguments in re.findall(r"benchmarks/gpu\.py ([^#\n]*)", page) + re.findall(r"GPU='(.*)'", page):
        gpu.parse(arguments.split('"')[0].replace("--commit ", "").split() if '"' in arguments else arguments.split())
