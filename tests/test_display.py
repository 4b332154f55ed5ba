"""What notebooks and tracebacks show of results: safe tables, and one short line."""

import dataclasses
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

from lit_gelu import activations, surgery
from lit_gelu.choose.statistics import MetricDifference
from lit_gelu.curvature import SpectralDensity, TraceEstimate
from lit_gelu.display import LONGEST_REPR, MOST_ROWS, HtmlTable, ShownFigures
from lit_gelu.export.parity.report import VS_FLOAT64, ParityReport, ParityRow
from lit_gelu.tasks.noise_robustness import RobustnessCurves

_NEVER_CLOSED = {"br", "hr", "img"}


class Page(HTMLParser):
    """Reads HTML as a browser does: elements must be closed in their order."""

    def __init__(self, html):
        super().__init__()
        self.open, self.elements, self.cells, self.attributes = [], [], [], {}
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag not in _NEVER_CLOSED
        self.open.append(tag)
        self.elements.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.cells.append(data)


def parity_report(rows=200):
    entries = [
        ParityRow(VS_FLOAT64, f"inputs {n}", "output", 8, 1e-7, 1.0, 1e-7, own=1e-7, limit=1e-5) for n in range(rows)
    ]
    return ParityReport("net.onnx", "CPUExecutionProvider", "tanh", tuple(entries))


@pytest.fixture(scope="module")
def results():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(60)))
    sample = torch.zeros(1, 4)
    plan = surgery.plan_swap(model, {"activation:relu": "gelu(approximate='tanh')"}, sample)
    return {
        "site": surgery.find_sites(model, sample)[0],
        "plan": plan,
        "coverage": surgery.coverage(model, sample),
        "swap": plan.apply(),
        "info": activations.info("gelu"),
        "spec": activations.resolve("swish(beta=1.5)"),
        "comparison": activations.compare("gelu", "gelu_tanh"),
        "parity": parity_report(),
        "density": SpectralDensity(torch.rand(2, 40).double(), torch.rand(2, 40).double(), 1000, 80),
        "trace": TraceEstimate(1.0, 0.1, 2.0, {"a": 1.0}, {"a": 0.1}, 8),
        "difference": MetricDifference("gelu", "relu", 5, 0.1, 0.0, 0.2, 0.04, equal=False),
        "robustness": RobustnessCurves((0.0,), (0.1,), (0.2,), (0.0,), (0.0,), 9, draws=1, seed=0),
        "figures": ShownFigures({f"hidden.{n}": {"mean": 0.1, "share_dead": 0.0} for n in range(60)}),
    }


NAMES = (
    "site", "plan", "coverage", "swap", "info", "spec", "comparison", "parity", "density", "trace", "difference",
    "robustness", "figures",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_result_is_one_short_line_and_a_safe_table(results, name):
    line, page = repr(results[name]), Page(results[name]._repr_html_())
    assert len(line) <= LONGEST_REPR
    assert "\n" not in line
    assert page.elements.count("td") > 0
    assert not {"script", "style", "link", "img", "iframe"} & set(page.elements)
    assert set(page.attributes) <= {"style", "scope"}
    assert not any("color:" in style.replace("rgba", "") for style in page.attributes["style"])  # it reads in the dark


def test_the_parity_report_shows_its_table_and_what_was_found():
    failed = dataclasses.replace(parity_report(3), faults=("the labels <b>differ</b>",), census={"Gelu": 1})
    page = Page(dataclasses.replace(failed, optimized_census={"Gelu": 1})._repr_html_())
    assert "FAILED (the labels <b>differ</b>)" in "".join(page.cells)  # as text: it was escaped
    assert "operators in the file: 1 Gelu" in "".join(page.cells)


class TestHtmlTable:
    def test_text_is_escaped_everywhere(self):
        bad = "<script>alert(1)</script>"
        page = Page(HtmlTable((bad,), [(bad,)], bad, [bad]).render())
        assert page.cells == [bad] * 4
        assert "script" not in page.elements

    def test_rows_that_are_left_out_are_counted(self):
        page = Page(HtmlTable(("n",), [(n,) for n in range(MOST_ROWS + 3)]).render())
        assert page.cells[-1] == "3 more rows are not shown."
        assert page.elements.count("td") == MOST_ROWS


def test_figures_in_a_file_are_plain_data(tmp_path):
    figures = ShownFigures({"a": {"mean": 1.0}})
    torch.save(figures, tmp_path / "figures.pt")
    assert torch.load(tmp_path / "figures.pt", weights_only=True) == figures
