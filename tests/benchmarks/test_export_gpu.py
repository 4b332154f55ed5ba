"""``benchmarks/export_gpu.py`` runs on the CPU at small sizes: every column, and errors of rounding alone."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

from lit_gelu import surgery

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "export_gpu.py"
QUICK = ["--device", "cpu", "--small", "--seconds", "0", "--no-compile"]


def measured(monkeypatch, tmp_path, *arguments):
    file = tmp_path / "reports.json"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *QUICK, "--json", str(file), *arguments])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    return json.loads(file.read_text())


@pytest.mark.full
def test_the_block(monkeypatch, tmp_path):
    measurements = measured(monkeypatch, tmp_path, "--only", "block")
    assert [(record["net"], record["form"], record["batch_size"]) for record in measurements] == [
        ("block", "exact", 4),
        ("block", "tanh", 4),
    ]
    for record in measurements:
        variants = [row["variant"] for row in record["rows"]]
        assert variants == ["torch eager", "onnxruntime strict", "onnxruntime fast"]
        assert all(row["error"] < 1e-5 and row["alone"] > 0 and row["in_a_row"] > 0 for row in record["rows"])
        assert record["rows"][0]["alone_ratio"] == record["rows"][0]["in_a_row_ratio"] == 1.0  # the only PyTorch


def test_forms_are_the_functions_that_they_are_called(monkeypatch, tmp_path):
    """Beside torch's own: the nets of the paper's tasks have the tanh form unless they are told otherwise."""
    script = runpy.run_path(str(SCRIPT))
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    for form, approximate in (("exact", "none"), ("tanh", "tanh")):
        for name in ("block", "mnist"):
            model = script["NETS"][name].build(script["FORMS"][form]).double()
            sites = [site.module for site in surgery.find_sites(model) if site.role == "activation"]
            assert sites
            for module in sites:
                assert torch.equal(module(x), torch.nn.functional.gelu(x, approximate=approximate))


@pytest.mark.gpu
@pytest.mark.full
def test_on_cuda(monkeypatch, tmp_path):
    for record in measured(monkeypatch, tmp_path, "--device", "cuda"):
        assert all(row["error"] < 0.01 for row in record["rows"])
