"""Findings of activations against figures made by hand, and gains against scipy's quadrature."""

import math

import pytest
from scipy import integrate, stats

from lit_gelu.report import LoggedCurve, ReportedRun, SiteActivations
from lit_gelu.report.activation_findings import activation_findings, gain_over_depth, gain_ratio, of_one_site


def topics(figures, spec=""):
    return {(finding.level, finding.topic) for finding in of_one_site("net.1", figures, spec)}


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"share_dead": 0.05}, set()),
        ({"share_dead": 0.2}, {("warning", "dead units")}),
        ({"share_dead": 0.7}, {("alarm", "dead units")}),
        ({"share_dead": math.nan}, set()),
        ({"share_saturated": 0.5}, set()),
        ({"share_saturated": 0.97}, {("warning", "saturation")}),
        ({"share_linear": 0.99}, {("note", "idle activation")}),
        ({"share_non_finite": 1e-6}, {("alarm", "non-finite inputs")}),
        ({"kink_mass": 0.4, "mean_abs_second_derivative": 0.0}, {("note", "kinks")}),
        ({"kink_mass": 0.1, "mean_abs_second_derivative": 0.4}, set()),
        ({"kink_mass": math.nan, "mean_abs_second_derivative": 0.4}, set()),
        ({"excess_kurtosis": 5.0}, {("note", "heavy tails")}),
    ],
)
def test_thresholds(figures, expected):
    assert topics(figures) == expected


def test_a_gain_is_compared_with_that_of_a_normal_input():
    def integrand(x):
        slope = stats.norm.cdf(x) + x * stats.norm.pdf(x)
        return slope**2 * stats.norm.pdf(x)

    expected = integrate.quad(integrand, -12, 12)[0]
    assert gain_ratio({"mean_squared_derivative": 0.1}, "gelu") == pytest.approx(0.1 / expected, rel=1e-7)
    assert topics({"mean_squared_derivative": expected / 2.1}, "gelu") == {("note", "backward gain")}
    assert topics({"mean_squared_derivative": expected / 1.9}, "gelu") == set()


@pytest.mark.parametrize("spec", ["", "os.system('true')", "nothing_registered", "glu", "\0", "relu -> gelu"])
def test_specs_that_are_none_give_no_gain(spec):
    assert gain_ratio({"mean_squared_derivative": 0.1}, spec) is None


def test_gains_multiply_over_the_depth():
    assert not list(gain_over_depth({"a": 0.5, "b": 0.5, "c": 0.5}))
    (found,) = gain_over_depth({str(i): 0.5 for i in range(40)})
    assert found.figures["log10_ratio"] == pytest.approx(40 * math.log10(0.5))
    assert "smaller" in found.text


@pytest.mark.parametrize(("statistic", "topics"), [("share_dead", ["dead units"]), ("share_linear", [])])
def test_that_no_unit_is_dead_is_said_only_where_it_was_measured(statistic, topics):
    curve = LoggedCurve(f"curvature/net.1/{statistic}", (9,), (0.0,))
    found = list(activation_findings(ReportedRun(title="", source="", made="", curves=(curve,))))
    assert [finding.topic for finding in found] == topics
    assert all(finding.level == "good" for finding in found)


def test_the_last_figures_of_every_site_are_judged():
    curves = (
        LoggedCurve("curvature/net.1/share_dead", (0, 9), (0.9, 0.0)),
        LoggedCurve("curvature/encoder/net.2/share_dead", (9,), (0.3,)),
        LoggedCurve("curvature/net.1/gaussian/share_dead", (9,), (0.9,)),
        LoggedCurve("curvature/loss/top_eigenvalue", (9,), (1.0,)),
    )
    run = ReportedRun(title="", source="", made="", curves=curves, sites=(SiteActivations("net.2", "relu", "relu"),))
    (found,) = activation_findings(run)
    assert (found.where, found.level) == ("encoder/net.2", "warning")
