"""Which of the logged curves belong to which activation, and what is remembered of them."""

from collections.abc import Iterable, Mapping

from lit_gelu.report.content import LoggedCurve, SiteActivations
from lit_gelu.report.logged_values import SITE_PREFIX, is_of_site

GAUSSIAN = "gaussian"
CURVATURE = "curvature"  # the sum of what is smooth and what is in kinks, as heat maps call it
SiteCurves = dict[str, dict[str, LoggedCurve]]


def site_curves(curves: Iterable[LoggedCurve], *, gaussian: bool = False) -> SiteCurves:
    """Return the curves of activations by site and statistic: the measured ones, or those of a normal input.

    Example:
        >>> curve = LoggedCurve("curvature/net.1/share_dead", (49,), (0.25,))
        >>> site_curves([curve])["net.1"]["share_dead"].values
        (0.25,)
    """
    found: SiteCurves = {}
    for curve in curves:
        if not is_of_site(curve.name):
            continue
        site, _, statistic = curve.name.removeprefix(SITE_PREFIX).rpartition("/")
        predicted = site.endswith(f"/{GAUSSIAN}")
        if predicted == gaussian:
            found.setdefault(site.removesuffix(f"/{GAUSSIAN}"), {})[statistic] = curve
    for statistics in found.values():
        total = _sum_of(statistics.get("mean_abs_second_derivative"), statistics.get("kink_mass"))
        if total is not None:
            statistics[CURVATURE] = total
    return found


def last_figures(statistics: Mapping[str, LoggedCurve]) -> dict[str, float]:
    """Return the last value of each statistic of a site."""
    return {name: curve.values[-1] for name, curve in statistics.items() if curve.values}


def spec_of_site(site: str, sites: Iterable[SiteActivations]) -> str:
    """Return the spec at a site when the run ended; empty if it is not known."""
    # A monitor with a name of its own writes that name before the site's.
    known = {each.name: each.at_end or each.at_start for each in sites}
    return known.get(site) or known.get(site.rpartition("/")[2], "")


def _sum_of(smooth: LoggedCurve | None, kinks: LoggedCurve | None) -> LoggedCurve | None:
    """Return the sum of two curves at the steps that both have."""
    if smooth is None or kinks is None:
        return None
    others = dict(zip(kinks.steps, kinks.values, strict=True))
    both = [
        (step, value + others[step]) for step, value in zip(smooth.steps, smooth.values, strict=True) if step in others
    ]
    return LoggedCurve(CURVATURE, tuple(step for step, _ in both), tuple(value for _, value in both)) if both else None
