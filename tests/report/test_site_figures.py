"""Figures of sites whose activation was swapped: what the new one has none of is not taken from the old one."""

import math

import pytest

from lit_gelu.report import LoggedCurve, ReportedRun, SiteActivations, SwapChange, SwapEvent
from lit_gelu.report.activation_findings import activation_findings
from lit_gelu.report.chart_groups import chart_sections
from lit_gelu.report.site_figures import CURVATURE, last_figures, site_curves, spec_at, unstated_kinks

SITE = "curvature/net.1/"
# ReLU until step 19, then a function of which nobody stated the kinks.
SWAPPED = (
    LoggedCurve(f"{SITE}mean_abs_second_derivative", (9, 19, 29, 39), (0.0, 0.0, 0.4, 0.5)),
    LoggedCurve(f"{SITE}kink_mass", (9, 19), (1.0, 0.75)),
    LoggedCurve(f"{SITE}share_dead", (9, 19), (0.9, 0.9)),
)
STATED = (SWAPPED[0], LoggedCurve(f"{SITE}kink_mass", (9, 19, 29, 39), (1.0, 0.75, 0.0, 0.0)))


def reported(curves):
    return ReportedRun(title="", source="", made="", curves=curves)


def maps(curves):
    return next(html for name, _, html in chart_sections(reported(curves)) if name == "maps")


def test_figures_of_an_activation_that_is_gone_are_no_last_figures():
    assert last_figures(site_curves(SWAPPED)["net.1"]) == {
        "mean_abs_second_derivative": 0.5,
        CURVATURE: pytest.approx(math.nan, nan_ok=True),
    }
    assert not list(activation_findings(reported(SWAPPED)))
    before = tuple(LoggedCurve(curve.name, curve.steps[:2], curve.values[:2]) for curve in SWAPPED)
    assert [finding.topic for finding in activation_findings(reported(before))] == ["dead units", "kinks"]


def test_the_curvature_is_unknown_from_where_the_kinks_are():
    curve = site_curves(SWAPPED)["net.1"][CURVATURE]
    assert curve.steps == (9, 19, 29, 39)
    assert curve.values[:2] == (1.0, 0.75)
    assert all(map(math.isnan, curve.values[2:]))
    assert site_curves(STATED)["net.1"][CURVATURE].values == (1.0, 0.75, 0.4, 0.5)


def test_curves_that_were_thinned_apart_are_added_where_both_have_a_value():
    smooth = LoggedCurve(f"{SITE}mean_abs_second_derivative", (0, 2, 4), (0.5, 0.5, 0.5))
    kinks = LoggedCurve(f"{SITE}kink_mass", (0, 1, 3, 4), (0.25, 0.0, 0.0, 0.5))
    assert site_curves((smooth, kinks))["net.1"][CURVATURE] == LoggedCurve(CURVATURE, (0, 4), (0.75, 1.0))


@pytest.mark.parametrize(("curves", "sites"), [(SWAPPED, ["net.1"]), (SWAPPED[:1], ["net.1"]), (STATED, [])])
def test_the_page_says_why_a_curvature_is_unknown_and_how_it_becomes_known(curves, sites):
    assert unstated_kinks(site_curves(curves)) == sites
    html = maps(curves)
    assert ("Not known at the end for net.1" in html) == bool(sites)
    assert ("ActivationFacts(smoothness=math.inf)" in html) == bool(sites)
    assert html.count("<figure>") == (2 if curves is SWAPPED else 1)  # of the curvature; and of the dead share


SWAPS = (
    SwapEvent(15, None, (SwapChange("net.1", "silu", "relu"), SwapChange("net.3", "silu", "relu"))),
    SwapEvent(25, None, (SwapChange("net.1", "relu", "mish"),)),
)
SITES = (SiteActivations("net.1", "silu", "mish"), SiteActivations("net.3", "silu", "relu"))


@pytest.mark.parametrize("sites", [SITES, ()], ids=["sites", "swaps alone"])
@pytest.mark.parametrize("monitor", ["", "encoder/"])
@pytest.mark.parametrize(
    ("site", "step", "spec"),
    [
        ("net.1", 9, "silu"),
        ("net.1", 14, "silu"),  # 15 steps come before the swap: 0 to 14
        ("net.1", 15, "relu"),
        ("net.1", 24, "relu"),
        ("net.1", 25, "mish"),
        ("net.3", 30, "relu"),
    ],
)
def test_figures_belong_to_the_activation_that_stood_there(sites, monitor, site, step, spec):
    run = ReportedRun(title="", source="", made="", sites=sites, swaps=SWAPS)
    assert spec_at(f"{monitor}{site}", step, run) == spec


def test_what_stands_at_a_site_without_swaps():
    run = ReportedRun(title="", source="", made="", sites=(*SITES, SiteActivations("net.5", "gelu", "")), swaps=SWAPS)
    assert [spec_at(site, 9, run) for site in ("net.5", "net.7")] == ["gelu", ""]
