"""``benchmarks/kernels.py``: what its tables hold, small and without a GPU; what times are is not asserted."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from child_processes import run_command

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPT = str(FOLDER / "kernels.py")
RATIOS = [f"{way} {direction}" for direction in ("forward", "backward") for way in ("eager", "fused")]


@pytest.fixture
def module(monkeypatch):
    """Imports a file of the benchmarks."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def made(*parts):
    """Return the record of a call, and its tables: standard output is the record's."""
    options = ["--device", "cpu", "--quick", "--json", "-"]
    done = run_command([sys.executable, "-P", "-W", "ignore", SCRIPT, *parts, *options])
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def record():
    content, tables = made("--speed", "--sweep", "--memory")
    assert "fused ran" in tables
    return content


@pytest.mark.full
def test_the_record_says_that_its_times_mean_nothing(record):
    assert record["quick"]
    assert "nothing is to be read from its times" in record["note"]
    assert record["versions"]["torch"] == torch.__version__
    assert record["machine"]["device"]


@pytest.mark.full
def test_machine_code_is_counted():
    pytest.importorskip("triton", reason="Triton has no build for this system")
    record, tables = made("--static")
    assert "unary_backward" in tables
    of = {row["template"]: row for row in record["static"]["templates"]}
    assert {row["function"] for row in of.values()} == {"gelu"}
    assert 10 < of["unary_forward"]["instructions"] < of["unary_backward"]["instructions"]
    assert of["unary_forward"]["widths"] == ["128"]
    assert of["unary_forward"]["registers"] > 16
    rows = {(row["formula"], row["function"], row["pass"]): row["kernels"] for row in record["static"]["inductor"]}
    for function in ("gelu", "bias and gelu"):
        for way in ("forward", "backward"):
            fused, plain = (rows[formula, function, way][0]["instructions"] for formula in ("fused", "torch"))
            assert 10 < fused < plain
    assert len(rows["fused", "bias and gelu", "backward"]) >= 2  # the bias's gradient is a sum
    assert len(rows["fused", "bias and gelu", "forward"]) == 1


@pytest.mark.full
def test_speeds_and_which_code_ran(record):
    for dtype in ("bfloat16", "float16"):
        rows = record["speed"][dtype]
        assert len(rows) == 3
        for row in rows:
            assert all(row[key] > 0 for key in RATIOS)
            assert row["route"] == ["torch", "the tensor lies on cpu, and kernels are for CUDA"]


@pytest.mark.full
def test_a_sweep_without_kernels_finds_no_threshold(record):
    assert [row["elements"] for row in record["sweep"]["bfloat16"]["rows"]] == [4096, 8192, 16384]
    assert record["sweep"]["bfloat16"]["threshold"] is None


@pytest.mark.full
def test_what_twelve_layers_keep(record):
    """The input, and of 11 activations what goes in and what comes out: 8 rows of 32 and of 128 16-bit numbers."""
    for way in ("eager", "fused"):
        assert record["memory"][f"mlp, {way}"] == {"saved_bytes": 2 * 8 * (32 + 11 * 2 * 128), "peak_bytes": None}
    of_output = record["memory"]["mlp, output"]["saved_bytes"]  # what comes out, and a bit for each
    assert of_output == 2 * 8 * (32 + 11 * 128) + 11 * 8 * 128 // 8
    assert record["memory"]["vit, eager"]["saved_bytes"] == record["memory"]["vit, fused"]["saved_bytes"] > 0


def row(elements, forward, backward=0.9, code="kernel"):
    return {"elements": elements, "forward ratio": forward, "backward ratio": backward, "code": code}


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([row(1, 0.9), row(2, 1.1), row(4, 1.0), row(8, 0.5)], 4),
        ([row(8, 0.5), row(4, 0.9, 1.01), row(2, 0.5)], 8),
        ([row(1, 0.5), row(2, 1.5)], None),
        ([row(1, 0.5, code="torch"), row(2, 0.5)], 2),
    ],
)
def test_the_threshold_is_from_where_on_no_size_is_slower(module, rows, wanted):
    assert module("_kernel_speed").threshold(rows) == wanted


def test_errors_of_a_wrong_way_are_seen(module, monkeypatch):
    proofs = module("_kernel_proofs")
    found = proofs.kernel_errors.by_formulas()
    x = proofs.kernel_errors.inputs("float16")
    wrong = {**found, "gelu float16 value": found["gelu float16 value"] + (x == 3.0) * 2.0**-7}
    lines = []
    rows = {
        (r["way"], r["function"], r["dtype"]): r
        for r in proofs.compared({"formula": found, "wrong": wrong}, lines.append)
    }
    assert rows["formula", "gelu", "float16"]["value_ulp"] <= 0.55
    assert 3.4 < rows["wrong", "gelu", "float16"]["value_ulp"] < 4.6  # numbers near 3 are 2**-9 apart
    assert rows["wrong", "gelu", "float16"]["at"] == 3.0
    assert len(lines) == 1 + len(rows)


def test_rows_of_a_record_are_lines(module):
    value = {"a": {"rows": [{"x": 1, "y": [2]}, {"x": 3}], "n": None}, "b": [1, 2]}
    text = module("kernels").written(value)
    assert json.loads(text) == value
    assert '   {"x": 1, "y": [2]},\n' in text


@pytest.mark.parametrize("part", ["--speed", "--sweep", "--memory"])
def test_full_sizes_are_refused_on_a_cpu(module, capsys, part):
    with pytest.raises(SystemExit) as ended:
        module("kernels").main([part, "--device", "cpu"])
    assert ended.value.code == 2
    assert "add --quick" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_counts_instructions(module):
    assert module("kernels").parse([]).parts == ["static"]
