"""Logged values: what is kept of long runs, and tables of any content."""

import math

import pytest

from lit_gelu.report import LoggedCurve, ReportedRun, ReportSourceError, judged
from lit_gelu.report.logged_values import MOST_POINTS, MOST_SITE_POINTS, CurveCollection, from_metrics_csv, thinned
from lit_gelu.report.plain_data import from_json, to_json


def test_long_curves_are_thinned_and_keep_their_ends():
    collection = CurveCollection(most_points=100)
    for step in range(10_000):
        collection.add(step, {"train_loss": float(step), "curvature/net.1/share_dead": 0.5})
    loss, dead = collection.curves()
    assert len(loss.steps) <= 101
    assert len(dead.steps) <= MOST_SITE_POINTS
    assert (loss.steps[0], loss.steps[-1]) == (0, 9999)
    assert loss.values == tuple(map(float, loss.steps))
    gaps = [b - a for a, b in zip(loss.steps, loss.steps[1:], strict=False)]
    assert max(gaps) <= 2 * 128
    assert set(gaps[:-1]) == {gaps[0]}


def test_the_last_value_of_a_step_stays():
    collection = CurveCollection()
    for value in (1.0, 2.0):
        collection.add(7, {"val_loss": value})
    assert collection.curves() == (LoggedCurve("val_loss", (7,), (2.0,)),)


def test_thinning_keeps_what_is_short():
    curve = LoggedCurve("a", (0, 1), (0.0, 1.0))
    assert thinned(curve, 2) is curve


def test_a_table_with_gaps_texts_and_a_cut_last_line(tmp_path):
    file = tmp_path / "metrics.csv"
    file.write_text("step,train_loss,note\n0,2.5,\n1,nan,text\n,9,9\n-1,9,9\n2,inf\n3,1e400,\n4,0.5,7")
    loss, note = from_metrics_csv(file)
    assert (loss.steps, loss.values[0], loss.values[2:]) == ((0, 1, 2, 3, 4), 2.5, (math.inf, math.inf, 0.5))
    assert math.isnan(loss.values[1])
    assert note == LoggedCurve("note", (4,), (7.0,))


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\xff\x00step"])
def test_what_is_no_table_of_steps(content, tmp_path):
    (tmp_path / "metrics.csv").write_bytes(content)
    with pytest.raises(ReportSourceError, match=r"metrics\.csv"):
        from_metrics_csv(tmp_path / "metrics.csv")


LONG = 30_011
SPECIAL = {"train_loss": (17_001, math.nan), "val_loss": (3_003, 0.25), "directional_stability": (20_003, 2.0)}


def long_run():
    """Values of 1, 0.5 in directional_stability, with one other at a step that no thinning keeps by chance."""
    for step in range(LONG):
        usual = {"train_loss": 1.0, "val_loss": 1.0, "directional_stability": 0.5}
        yield step, usual | {name: value for name, (at, value) in SPECIAL.items() if at == step}


def collected(folder):
    collection = CurveCollection()
    for step, values in long_run():
        collection.add(step, dict.fromkeys(values, -1.0))
        collection.add(step, values)  # the last value of a step stays
    return collection.curves()


def read_from_csv(folder):
    rows = [",".join(map(str, [step, *values.values()])) for step, values in long_run()]
    (folder / "metrics.csv").write_text("\n".join([",".join(["step", *SPECIAL]), *rows]))
    return from_metrics_csv(folder / "metrics.csv")


@pytest.mark.parametrize("curves_of", [collected, read_from_csv])
def test_findings_rest_on_all_values(curves_of, tmp_path):
    run = judged(ReportedRun(title="t", source="s", made="m", curves=curves_of(tmp_path)))
    assert max(len(curve.steps) for curve in run.curves) <= MOST_POINTS
    again = from_json(to_json(run))
    for each in (run, judged(again)):
        said = {finding.topic: finding.text for finding in each.findings}
        assert "first at step 17001." in said["loss not finite"]
        assert "lowest at step 3003, with 0.25, and 1 at the end" in said["overfitting"]
        assert said["long steps"].startswith(f"1 of {LONG} measured steps")
