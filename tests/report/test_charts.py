"""Charts show the ends of what was measured, however long it is."""

import pytest

from lit_gelu.report import LoggedCurve
from lit_gelu.report.charts import heat_map


@pytest.mark.parametrize("count", [1, 2, 59, 60, 61, 100, 1001])
def test_a_heat_map_has_the_first_and_the_last_step(count):
    values = (0.125, *[0.5] * (count - 2), 0.25)[-count:]
    drawn = heat_map([LoggedCurve("net.1", tuple(range(count)), values)], "map", swaps=[count - 1])
    assert f"net.1, step 0: {values[0]}" in drawn
    assert f"net.1, step {count - 1}: {values[-1]}" in drawn
    assert ('class="swap"' in drawn) == (count > 1)
