"""The report: JSON, text and page say the same."""

import json
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
import torch
from export_cases import gelu_net

from lit_gelu.export import check_parity, export_onnx
from lit_gelu.export.parity.report import VS_TRAINED, figure

SAMPLE = torch.zeros(2, 6)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """One that passed with a gap and data, and one that failed."""
    folder = tmp_path_factory.mktemp("report")
    net = gelu_net()
    export_onnx(net, folder / "a|b<i>.onnx", SAMPLE, approximate="tanh")
    passed = check_parity(net, folder / "a|b<i>.onnx", torch.randn(5, 6))
    with torch.no_grad():
        net[3].bias += 0.01
    return {"passed": passed, "failed": check_parity(net, folder / "a|b<i>.onnx", strict=False)}


@pytest.mark.parametrize("kind", ["passed", "failed"])
def test_the_json_is_complete_and_versioned(reports, kind):
    report = reports[kind]
    plain = json.loads(report.to_json())
    assert (plain["schema"], plain["schema_version"]) == ("lit-gelu-parity", 1)
    assert plain["passed"] is (kind == "passed")
    assert set(vars(report)) <= set(plain)
    assert plain["provider"] == ("CUDAExecutionProvider" if torch.cuda.is_available() else "CPUExecutionProvider")
    assert {"torch", "onnxruntime"} <= set(plain["versions"])
    assert len(plain["rows"]) == len(report.rows)
    assert plain["census"] == {"Gemm": 3, "Gelu": 2}
    assert (plain["culprit"] is None) is (kind == "passed")


def test_activations_alone_are_no_proof(reports):
    report = reports["passed"]
    alone = replace(report, rows=tuple(row for row in report.rows if row.comparison.startswith("operator alone")))
    assert alone.rows
    assert not alone.passed


def markdown_rows(text):
    """The rows of the table of a Markdown text, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [[cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines][1:]


@pytest.mark.parametrize("kind", ["passed", "failed"])
def test_every_figure_of_the_table_is_the_jsons(reports, kind):
    plain, body = json.loads(reports[kind].to_json()), markdown_rows(reports[kind].to_markdown())
    rows = [row for row in plain["rows"] if row["limit"] is not None or row["comparison"] == VS_TRAINED]
    assert len(body) == len(rows)
    for cells, row in zip(body, rows, strict=True):
        name, count, *figures, top1, verdict = cells
        keys = ("max_abs_error", "error", "own", "limit")
        assert figures == [figure(None if row[key] is None else float(row[key])) for key in keys]
        assert (name.startswith(row["inputs"]), count) == (True, str(row["count"]))
        assert verdict == {True: "ok", False: "FAILED", None: "reported"}[row["passed"]]
        assert bool(top1) == (row["top1_agreement"] is not None)


@pytest.mark.parametrize("kind", ["passed", "failed"])
def test_the_page_is_well_formed_and_needs_nothing_from_elsewhere(reports, kind):
    html = reports[kind].to_html()
    root = ET.fromstring(re.sub("<!DOCTYPE html>|<meta[^>]*>", "", html))
    text = " ".join(root.itertext())
    assert not {"script", "link", "img", "iframe"} & {element.tag for element in root.iter()}
    assert "url(" not in html
    assert ("passed" if kind == "passed" else "FAILED") in text
    assert "a|b<i>.onnx" in text
    assert all(figure(row.error) in text for row in reports[kind].rows if row.gating)
