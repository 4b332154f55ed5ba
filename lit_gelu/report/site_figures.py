"""Which of the logged curves belong to which activation, and what is remembered of them."""

import math
from collections.abc import Iterable, Mapping

from lit_gelu.report.content import LoggedCurve, ReportedRun
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
    """Return each statistic of a site at its last measurement; what was not measured then is left out.

    After a swap, figures of the old activation may have none of the new one that would replace them.

    Example:
        >>> curves = {"kink_mass": LoggedCurve("k", (9,), (1.0,)), "mean": LoggedCurve("m", (9, 19), (0.5, 0.25))}
        >>> last_figures(curves)
        {'mean': 0.25}
    """
    last = last_step(statistics)
    return {name: curve.values[-1] for name, curve in statistics.items() if curve.steps and curve.steps[-1] == last}


def unstated_kinks(sites: SiteCurves) -> list[str]:
    """Return the sites whose kinks were not known at the last measurement, so that their curvature is not.

    Example:
        >>> unstated_kinks({"net.1": {"mean_abs_second_derivative": LoggedCurve("a", (9,), (0.4,))}})
        ['net.1']
    """
    last = {site: last_figures(statistics) for site, statistics in sites.items()}
    return [site for site, found in last.items() if "mean_abs_second_derivative" in found and "kink_mass" not in found]


def last_step(statistics: Mapping[str, LoggedCurve]) -> int:
    """Return the step of a site's last measurement, that of `last_figures`; 0 if there was none."""
    return max((curve.steps[-1] for curve in statistics.values() if curve.steps), default=0)


def model_site(site: str, run: ReportedRun) -> str:
    """Return the name that a site of a monitor has in the model; what it is called here if the model's are not known.

    Example:
        >>> from lit_gelu.report import SiteActivations
        >>> sites = (SiteActivations("net.1", "relu", "relu"),)
        >>> model_site("encoder/net.1", ReportedRun(title="", source="", made="", sites=sites))
        'net.1'
    """
    # A monitor with a name of its own writes that name before the site's.
    known = {each.name for each in run.sites} | {change.site for swap in run.swaps for change in swap.changes}
    alone = site.rpartition("/")[2]
    return alone if site not in known and alone in known else site


def spec_at(site: str, step: int, run: ReportedRun) -> str:
    """Return the spec at a site when a step was measured; empty if it is not known.

    Args:
        site: As a monitor calls it.
        step: As loggers number it: so many batches came before, but for those that only accumulate
            (``accumulate_grad_batches``).
        run: With its sites and swaps.

    Returns:
        The spec as text.
    """
    name = model_site(site, run)
    changes = [(swap.step, change) for swap in run.swaps for change in swap.changes if change.site == name]
    later = next((change for at, change in changes if at > step), None)
    if later is not None:
        return later.old
    stated = {each.name: each.at_end or each.at_start for each in run.sites}
    return stated.get(name) or (changes[-1][1].new if changes else "")


def _sum_of(smooth: LoggedCurve | None, kinks: LoggedCurve | None) -> LoggedCurve | None:
    """Return the sum of two curves at the steps that both have, and NaN where the kinks are not known any more."""
    if smooth is None or kinks is None or not kinks.steps:
        return None
    others = dict(zip(kinks.steps, kinks.values, strict=True))
    both = [
        (step, value + others.get(step, math.nan))
        for step, value in zip(smooth.steps, smooth.values, strict=True)
        if step in others or not kinks.steps[0] <= step <= kinks.steps[-1]  # between them one is thinned out
    ]
    return LoggedCurve(CURVATURE, tuple(step for step, _ in both), tuple(value for _, value in both)) if both else None
