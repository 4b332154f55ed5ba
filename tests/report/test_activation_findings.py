"""Findings of activations against figures made by hand, and gains against scipy's quadrature."""

import math

import pytest
from scipy import integrate, stats

from lit_gelu.report import LoggedCurve, ReportedRun, SiteActivations, SwapChange, SwapEvent
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


def test_a_site_of_several_monitors_counts_once_in_the_depth():
    # ReLU's E f'^2 is 1/2 for x ~ N(0, 1), so measured 1/16 and 1/8 are 1/8 and 1/4 of it: 1/32 together.
    curves = [
        LoggedCurve(f"curvature/{monitor}{site}/mean_squared_derivative", (9, last), (0.5, value))
        for monitor, last, change in (("", 19, 1.0), ("b/", 29, 0.5), ("a/", 14, 3.0))
        for site, value in (("net.1", 0.125 * change), ("net.3", 0.25 * change))
    ]
    sites = tuple(SiteActivations(name, "relu", "relu") for name in ("net.1", "net.3"))
    run = ReportedRun(title="", source="", made="", curves=tuple(curves), sites=sites)
    (found,) = [finding for finding in activation_findings(run) if finding.topic == "gain over depth"]
    assert found.figures["log10_ratio"] == pytest.approx(math.log10(1 / 32))
    assert "the 2 measured activations" in found.text


def test_advice_names_the_activation_that_was_measured():
    change = SwapEvent(15, None, (SwapChange("net.1", "relu", "gelu"),))
    curve = LoggedCurve("curvature/net.1/share_dead", (9,), (0.6,))
    sites = (SiteActivations("net.1", "relu", "gelu"),)
    run = ReportedRun(title="", source="", made="", curves=(curve,), sites=sites, swaps=(change,))
    (found,) = activation_findings(run)
    assert "swap relu for" in found.advice
    (unknown,) = activation_findings(ReportedRun(title="", source="", made="", curves=(curve,)))
    assert "swap it for" in unknown.advice
