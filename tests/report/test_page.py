"""The page: all text is text, all points are drawn where they belong."""

import math
from dataclasses import fields
from html.parser import HTMLParser

import pytest

from lit_gelu.report import (
    ExportedFile,
    LoggedCurve,
    OptimizerSettings,
    ReportedRun,
    RunFinding,
    SiteActivations,
    SwapChange,
    SwapEvent,
    page,
)
from lit_gelu.report.page import BOTTOM, LEFT, RIGHT, TOP, Axis, line_chart

BAD = "</script><img src=x onerror='a'>\"&\x00\u202e\ud800" + "long" * 1000
KNOWN = {
    "html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "h3", "p", "dl", "div", "dt", "dd", "main",
    "ul", "ol", "li", "span", "strong", "code", "figure", "figcaption", "svg", "text", "line", "polyline", "circle",
    "details", "summary", "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip


def hostile():
    curves = tuple(
        LoggedCurve(name, (1, 2, 3), (0.5, math.nan, 1e300))
        for name in (BAD, f"val_loss{BAD}", f"lr-{BAD}", f"curvature/{BAD}/share_dead", "curvature/l/top_eigenvalue")
    )
    run = ReportedRun(
        title=BAD,
        source=BAD,
        made=BAD,
        failure=BAD,
        status="failed",
        steps=1,
        epochs=1,
        seconds=math.inf,
        configuration={BAD: {BAD: BAD}},
        optimizers=(OptimizerSettings(BAD),),
        curves=curves,
        sites=(SiteActivations(BAD, BAD, BAD),),
        swaps=(SwapEvent(2, None, (SwapChange(BAD, BAD, BAD),)),),
        findings=(RunFinding("alarm", BAD, BAD, BAD, BAD, {BAD: 1.0}, BAD),) * 2,
        files=(ExportedFile(BAD, 1, "failed", 20, BAD, {BAD: 1}, 1.0, BAD, BAD),),
        environment={BAD: BAD},
        missing=(BAD,),
    )
    assert all(getattr(run, field.name) for field in fields(run))  # nothing is left out above
    return run


class Reader(HTMLParser):
    """Notes elements, attributes and whether all that opens is closed."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.open = set(), set(), []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()


@pytest.mark.parametrize("run", [hostile(), ReportedRun(title="", source="", made="")], ids=["hostile", "empty"])
def test_nothing_of_a_run_becomes_an_element_or_an_attribute(run):
    text = page(run)
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert reader.tags <= KNOWN
    assert not {name for name in reader.attributes if name.startswith("on") or name in {"src", "href"}}
    assert not {"\x00", "\u202e", "\ud800"} & set(text)
    assert "longlong" * 300 not in text
    text.encode("utf-8")


def test_a_line_breaks_where_a_value_is_not_finite_and_stays_in_its_frame():
    chart = line_chart([LoggedCurve("a", tuple(range(7)), (1.0, 2.0, math.inf, 3.0, math.nan, 4.0, 5.0))], [3, 99])
    (line,) = chart["lines"]
    assert [len(run) for run in line["runs"]] == [2, 1, 2]
    assert all(LEFT <= x <= RIGHT and TOP <= y <= BOTTOM for run in line["runs"] for x, y in run)
    assert [step for _, step in chart["swaps"]] == [3]


def test_a_long_curve_is_thinned_out_with_its_first_and_last_point():
    curve = LoggedCurve("a", tuple(range(5000)), tuple(float(i) for i in range(5000)))
    ((run,),) = [line["runs"] for line in line_chart([curve], [])["lines"]]
    assert len(run) == 1000
    assert (run[0][0], run[-1][0]) == (LEFT, RIGHT)


@pytest.mark.parametrize(
    ("values", "logarithmic"),
    [
        ((1.0, 99.0), False),
        ((1.0, 100.0), True),
        ((-1.0, 1e9), False),
        ((0.0, 1e9), False),
        ((3.0, 3.0), False),
        ((math.nan,), False),
    ],
)
def test_an_axis_holds_its_values(values, logarithmic):
    axis = Axis.of(values, 0.0, 100.0)
    assert axis.logarithmic == logarithmic
    assert all(0 <= axis.place(value) <= 100 for value in values if math.isfinite(value))
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 12
    assert all(-0.1 <= place <= 100.1 for place, _ in ticks)
