"""Charts show the ends of what was measured, however long it is."""

import math
import re
from itertools import pairwise

import pytest

from lit_gelu.report import LoggedCurve
from lit_gelu.report.charts import heat_map
from lit_gelu.report.logged_values import CurveCollection


@pytest.mark.parametrize("count", [1, 2, 59, 60, 61, 100, 1001])
def test_a_heat_map_has_the_first_and_the_last_step(count):
    values = (0.125, *[0.5] * (count - 2), 0.25)[-count:]
    drawn = heat_map([LoggedCurve("net.1", tuple(range(count)), values)], "map", swaps=[count - 1])
    assert f"net.1, step 0: {values[0]}" in drawn
    assert f"net.1, step {count - 1}: {values[-1]}" in drawn
    assert ('class="swap"' in drawn) == (count > 1)


def cells(drawn, name):
    """The step and value of each cell of a row, from left to right."""
    return [(int(step), float(value)) for step, value in re.findall(f"<title>{name}, step (\\d+): ([^<]*)<", drawn)]


def latest_of_each(steps, ends):
    """The last step of each interval that has one, counted by hand."""
    starts = [-1, *ends[:-1]]
    parts = [[step for step in steps if start < step <= end] for start, end in zip(starts, ends, strict=True)]
    return [part[-1] for part in parts if part]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (range(9, 5000, 10), range(1239, 5000, 10)),  # one begins later
        (range(9, 5000, 10), range(9, 3333, 10)),  # one ends earlier
        (range(49, 5000, 50), range(99, 5000, 70)),  # two monitors
        (range(1, 200, 2), range(9, 200, 10)),
    ],
)
def test_every_interval_that_was_measured_has_its_latest_value(first, second):
    rows = [
        LoggedCurve(name, tuple(steps), tuple(step / 8 for step in steps))
        for name, steps in (("a", first), ("b", second))
    ]
    drawn = heat_map(rows, "map")
    union = sorted({*first, *second})
    ends = [union[round(i * (len(union) - 1) / 59)] for i in range(60)] if len(union) > 60 else union
    for row in rows:
        expected = latest_of_each(row.steps, ends)
        assert [step for step, _ in cells(drawn, row.name)] == expected
        assert [value for _, value in cells(drawn, row.name)] == pytest.approx(
            [step / 8 for step in expected], rel=1e-3
        )


def test_rows_that_were_thinned_apart_have_no_gaps():
    collection = CurveCollection()
    for step in range(9, 5000, 10):
        both = {f"curvature/{name}/share_saturated": 0.5 for name in ("net.1", "net.3")[: 1 + (step > 1234)]}
        collection.add(step, both)
    rows = collection.curves()
    drawn = heat_map(rows, "map")
    assert len(cells(drawn, rows[0].name)) == 60
    measured = cells(drawn, rows[1].name)
    assert len(measured) >= 44  # the last three quarters of 60 columns
    assert max(later - earlier for (earlier, _), (later, _) in pairwise(measured)) < 200


def test_a_value_that_is_not_known_any_more_hides_the_one_before():
    steps = tuple(range(120))
    values = tuple(math.nan if step == 119 else 0.5 for step in steps)
    drawn = heat_map([LoggedCurve("a", steps, values), LoggedCurve("b", steps, (0.25,) * 120)], "map")
    assert cells(drawn, "a")[-1][0] < 118
    assert cells(drawn, "b")[-1] == (119, 0.25)
