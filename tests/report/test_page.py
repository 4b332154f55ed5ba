"""The page: all text is text, all points are drawn where they belong."""

import math

from lit_gelu.report import ExportedFile, LoggedCurve, ReportedRun, RunFinding, SwapChange, SwapEvent, page
from lit_gelu.report.page import BOTTOM, LEFT, RIGHT, TOP, line_chart

BAD = "</script><img src=x onerror='a'>\"&\x00\u202e\ud800" + "long" * 1000


def test_whatever_a_run_holds_is_text_on_its_page():
    names = (BAD, f"val_loss{BAD}", f"curvature/{BAD}/share_dead")
    run = ReportedRun(
        title=BAD,
        source=BAD,
        made=BAD,
        configuration={BAD: {BAD: BAD}},
        curves=tuple(LoggedCurve(name, (1, 2, 3), (0.5, math.nan, 1e300)) for name in names),
        swaps=(SwapEvent(2, None, (SwapChange(BAD, BAD, BAD),)),),
        findings=(RunFinding("alarm", BAD, BAD, BAD, BAD, {BAD: 1.0}, BAD),),
        files=(ExportedFile(BAD, 1, "failed", 20, BAD, {BAD: 1}, 1.0, BAD, BAD),),
        missing=(BAD,),
    )
    text = page(run)
    assert "<script" not in text
    assert "<img" not in text
    assert "longlong" * 300 not in text
    text.encode("utf-8")
    assert "There is nothing to judge" in page(ReportedRun(title="", source="", made=""))


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
