"""docs/gpu.md is what its generator writes of the records that there are, and its text is true of the script."""

import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = DOCS / "gpu.md"
CURVE = [{"epoch": 0, "step": 500, "seconds": 9.5, "train_loss": 1.25}, {"epoch": 1, "step": 1000, "train_loss": 0.75}]
FIGURES = {
    "doctor": {"facts": {}, "findings": [{"check": "CUDA", "level": "ok", "text": "works", "remedy": ""}]},
    "tests": {
        "tests/a.py": {"file": "tests/a.py", "counts": {"passed": 3, "failure": 1}, "ended": "pytest ended with -11"},
        "total": {"passed": 3},
    },
    "parity": {
        "gelu, fp16": {
            "refused": "ProviderError: two nodes",
            "on_cpu": ["Elu node_1"],
            "copies": {"MemcpyToHost": 2},
            "passed": False,
            "reasons": ["1 comparison"],
            "error": 0.00125,
            "own_error": None,
            "extremes": [{"inputs": "zeros", "passed": False}, {"inputs": "gaussian x 10", "passed": True}],
        }
    },
    "export": {
        "block, exact, batch 8192": {
            "net": "block",
            "form": "exact",
            "batch_size": 8192,
            "rows": [
                {
                    "variant": "onnxruntime fast",
                    "alone": 0.275,
                    "alone_ratio": 1.125,
                    "in_a_row": 0.25,
                    "in_a_row_ratio": 1.0625,
                    "error": 0.001,
                }
            ],
        }
    },
    "activations": {"copy, bfloat16, GB/s": 4200.5, "gelu, bfloat16": {"module forward": 0.75, "eager backward": 0.84}},
    "kernels": {
        "errors": [
            {"function": "gelu", "dtype": "float16", "value_ulp": 0.536, "slope_ulp": 0.5},
            {"function": "silu", "dtype": "bfloat16", "value_ulp": 0.5, "slope_ulp": 0.501},
        ],
        "speed, gelu, bfloat16": {"eager forward": 0.75, "fused backward": 1.04, "route": ["kernel", "large"]},
        "sweep, 4096 elements": {"elements": 4096},
        "threshold": 4194304,
        "memory, vit, fused": {"saved_bytes": 3 << 20, "peak_bytes": 5 << 20},
    },
    "cifar10": {
        "milliseconds a step": {"milliseconds": {"nothing": 8.5}, "beside nothing": {"nothing": 1.0}},
        "epochs": {"seconds an epoch": 9.5, "curve": CURVE},
    },
    "wrn": {},
}
SAID = {
    "doctor": ["| CUDA | ok | works |"],
    "tests": ["| `tests/a.py` | 3 passed, 1 failure | pytest ended with -11 |"],
    "parity": ["| gelu, fp16 | 1 comparison | 0.0013 |  | zeros | ProviderError; Elu node_1; 2 MemcpyToHost |"],
    "export": ["| block, exact, 8192 | onnxruntime fast | 0.275 | 1.12 | 0.25 | 1.06 | 0.001 |"],
    "activations": ["(copy, bfloat16, GB/s: 4200.5)", "| gelu, bfloat16 | 0.75 |  |  |  | 0.84 |  |"],
    "kernels": [
        "| gelu, bfloat16 | 0.75 |  |  |  |  |  | 1.04 |  | kernel |",
        "f 0.536 last places (gelu, float16), f' 0.501 of 1.13's (silu, bfloat16)",
        "Never slower than eager from 4194304 elements on",
        "| vit, fused | 3 | 5 |",
    ],
    "cifar10": [
        "| nothing | 8.5 | 1 |",
        "9.5 s an epoch; the last one: epoch 1, step 1000, train_loss 0.75.",
        "Data: real.",
    ],
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


def test_it_says_so_where_no_gpu_has_run_anything(made):
    assert made().startswith("No record of a GPU exists yet")


def test_every_stage_has_its_section_in_their_order(made):
    text = made(*(record(stage) for stage in reversed(FIGURES)))
    assert re.findall(r"^### (.*)$", text, re.MULTILINE) == list(FIGURES)
    sections = dict(zip(FIGURES, re.split(r"^### .*$", text, flags=re.MULTILINE)[1:], strict=True))
    for stage, lines in SAID.items():
        assert all(line in sections[stage] for line in lines)
        about = "NVIDIA H200, driver 580.1, torch 2.11.0, cuda 13.0; commit 0123456789ab, code fedcba; 210 s."
        assert about in sections[stage]


def test_what_failed_and_what_is_missing_is_said(made):
    text = made(
        record(
            "export",
            error="did not end within its 220 s\nmore",
            failed=[{"what": "block", "error": "ValueError: no\nfile.py:3"}],
            left_out=[{"what": name, "why": "no time was left"} for name in ("wrn", "mnist")],
        )
    )
    lines = [
        "- ended early: did not end within its 220 s",
        "- failed: block: ValueError: no",
        "- left out, no time was left: wrn; mnist",
    ]
    assert "\n".join(lines) in text


@pytest.mark.parametrize("change", [{"device": "cpu"}, {"quick": True}])
def test_figures_of_a_cpu_or_of_small_sizes_are_refused(made, change):
    with pytest.raises(ValueError, match=r"gpu-export\.json is not of a whole run on a GPU"):
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
