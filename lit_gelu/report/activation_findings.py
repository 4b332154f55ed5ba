"""What the figures of activations mean, in plain sentences: pure functions from figures to findings."""

import math
from collections.abc import Iterable, Iterator, Mapping

from lit_gelu.activations import registry
from lit_gelu.activations.gaussian import gaussian_moments
from lit_gelu.errors import LitGeluError
from lit_gelu.report.content import Level, ReportedRun, RunFinding
from lit_gelu.report.site_figures import CURVATURE, last_figures, last_step, model_site, site_curves, spec_at

DEAD, MOSTLY_DEAD = 0.1, 0.5
"""Share of dead channels from which there is a warning, and an alarm. Both are this package's choice: Lu et al. 2019
(arXiv 1903.06733) define a dead unit, and no paper says how many a net can spare."""

SATURATED = 0.9
"""Share of inputs with |f'| < 0.01 from which there is a warning. ReLU has 0.5 for a symmetric input, so that a half is
no fault; with 0.9, nine of ten gradients stop. Glorot and Bengio 2010 (PMLR 9, 249-256) show what saturation costs."""

LINEAR = 0.95
"""Share of inputs with |f' - 1| < 0.01 from which an activation is called idle."""

OFF_BY = 2.0
"""Factor between E f'^2 as measured and for x ~ N(0, 1), from which there is a note. Initialisers assume the latter."""

OFF_BY_IN_DEPTH = 10.0
"""The same for the product over all sites, from which there is a warning. With weights that are scaled for N(0, 1), the
product is by how much squared gradients grow or shrink beyond what was planned: ``chi_1`` of Schoenholz et al. 2017
(arXiv 1611.01232), layer by layer."""

IN_KINKS = 0.5
"""Share of the curvature that is in kinks, from which a note says so."""

HEAVY_TAILS = 3.0
"""Excess kurtosis from which a note says that few units carry the signal; a Laplace distribution has 3."""

_SIGNAL = "Schoenholz et al. 2017, arXiv 1611.01232"


def activation_findings(run: ReportedRun) -> Iterator[RunFinding]:
    """Yield what the last figures of every site say, and those of all sites together."""
    sites = site_curves(run.curves)
    measured = {site: last_figures(statistics) for site, statistics in sites.items()}
    ratios: dict[str, tuple[int, float]] = {}
    for site, figures in measured.items():
        step, name = last_step(sites[site]), model_site(site, run)
        spec = spec_at(site, step, run)
        yield from of_one_site(site, figures, spec)
        ratio = gain_ratio(figures, spec)
        # A site that several monitors measure counts once, as it was measured last.
        if ratio is not None and step >= ratios.get(name, (step,))[0]:
            ratios[name] = (step, ratio)
    yield from gain_over_depth({name: ratio for name, (_, ratio) in ratios.items()})
    shares = [share for figures in measured.values() if math.isfinite(share := figures.get("share_dead", math.nan))]
    most = max(shares, default=math.inf)
    if most < DEAD:
        text = f"No site has lost a tenth of its units: at most {_percent(most)} of the channels passed no gradient."
        yield RunFinding("good", "dead units", "", text, figures={"share_dead": most})


def of_one_site(site: str, figures: Mapping[str, float], spec: str = "") -> Iterator[RunFinding]:
    """Yield what the figures of one site say.

    Args:
        site: Its name.
        figures: The statistics of `lit_gelu.callbacks.ActivationCurvatureMonitor`, by name.
        spec: The activation that stands there, as text; empty if it is not known.

    Yields:
        Findings.

    Example:
        >>> [finding.text for finding in of_one_site("net.1", {"share_dead": 0.6})]
        ['60 % of the channels passed no gradient in any of the last measurements: these units are dead.']
    """
    yield from _dead(site, figures, spec)
    for rule in (_non_finite, _saturated, _idle, _kinks, _heavy_tails):
        yield from rule(site, figures)
    ratio = gain_ratio(figures, spec)
    if ratio is not None and not 1 / OFF_BY < ratio < OFF_BY:
        yield _off_gain(site, spec, figures["mean_squared_derivative"], ratio)


def gain_ratio(figures: Mapping[str, float], spec: str) -> float | None:
    """Return E f'^2 as measured over E f'^2 for x ~ N(0, 1), which initialisers assume; ``None`` if not known.

    Example:
        >>> gain_ratio({"mean_squared_derivative": 0.25}, "relu")
        0.5
    """
    measured = figures.get("mean_squared_derivative", math.nan)
    if not spec or not math.isfinite(measured):
        return None
    try:
        known = registry.stored.resolve(spec)
        expected = gaussian_moments(known).derivative_squared.item()
    except LitGeluError:  # not registered here, not elementwise, or without moments
        return None
    return measured / expected if expected > 0 else None


def gain_over_depth(ratios: Mapping[str, float]) -> Iterator[RunFinding]:
    """Yield a warning if the backward gains of all sites together are far from those for N(0, 1)."""
    positive = [ratio for ratio in ratios.values() if ratio > 0]
    if len(positive) < 2:
        return
    exponent = math.fsum(map(math.log10, positive))
    if abs(exponent) < math.log10(OFF_BY_IN_DEPTH):
        return
    word = "larger" if exponent > 0 else "smaller"
    factor = f"10^{abs(exponent):.1f}"
    text = (
        f"Through the {len(positive)} measured activations together, squared gradients come out {factor} times {word} "
        "than for the inputs of mean 0 and deviation 1 that initialisers assume."
    )
    advice = (
        "Look at the heat map of the backward gain for the layers where it begins. Normalisation brings inputs back to "
        "deviation 1; lit_gelu.activations.gain gives the scale of weights for another deviation."
    )
    yield RunFinding("warning", "gain over depth", "", text, advice, {"log10_ratio": exponent}, _SIGNAL)


def _non_finite(site: str, figures: Mapping[str, float]) -> Iterator[RunFinding]:
    share = figures.get("share_non_finite", 0.0)
    if share > 0:
        text = f"{_percent(share)} of the inputs were NaN or infinite at the last measurement."
        advice = "The run has diverged before this layer. Lower the learning rate, or clip gradients."
        yield RunFinding("alarm", "non-finite inputs", site, text, advice, {"share_non_finite": share})


def _is_dead(figures: Mapping[str, float]) -> bool:
    return figures.get("share_dead", 0.0) >= DEAD


def _dead(site: str, figures: Mapping[str, float], spec: str) -> Iterator[RunFinding]:
    if not _is_dead(figures):
        return
    share = figures["share_dead"]
    level: Level = "alarm" if share >= MOSTLY_DEAD else "warning"
    text = (
        f"{_percent(share)} of the channels passed no gradient in any of the last measurements: these units are dead."
    )
    advice = (
        f"Lower the learning rate or warm it up, check the bias in front, or swap {spec or 'it'} for an activation "
        "with a slope on both sides, such as leaky_relu."
    )
    yield RunFinding(level, "dead units", site, text, advice, {"share_dead": share}, "Lu et al. 2019, arXiv 1903.06733")


def _saturated(site: str, figures: Mapping[str, float]) -> Iterator[RunFinding]:
    share = figures.get("share_saturated", 0.0)
    if share < SATURATED:
        return
    text = f"At {_percent(share)} of its inputs |f'| < 0.01: almost no gradient passes."
    advice = "Inputs lie in the flat part. Normalise in front of it, or scale the weights by lit_gelu.activations.gain."
    figures_used = {"share_saturated": share}
    yield RunFinding("warning", "saturation", site, text, advice, figures_used, "Glorot and Bengio 2010, PMLR 9")


def _idle(site: str, figures: Mapping[str, float]) -> Iterator[RunFinding]:
    share = figures.get("share_linear", 0.0)
    if share >= LINEAR:
        text = f"At {_percent(share)} of its inputs f' is 1 within 0.01: the activation does next to nothing there."
        advice = "Inputs are large and positive. Look at the bias or the normalisation in front."
        yield RunFinding("note", "idle activation", site, text, advice, {"share_linear": share})


def _kinks(site: str, figures: Mapping[str, float]) -> Iterator[RunFinding]:
    kinks, total = figures.get("kink_mass", math.nan), figures.get(CURVATURE, math.nan)
    if not (math.isfinite(kinks) and total > 0):
        total = kinks + figures.get("mean_abs_second_derivative", math.nan)
    if total > 0 and kinks / total >= IN_KINKS:
        text = (
            f"{_percent(kinks / total)} of its curvature ({kinks:.3g} of {total:.3g} per unit of input) is in kinks, "
            "where f'' does not exist."
        )
        advice = (
            "The Hessian of the loss does not see it, and one-sided differences of gradients are wrong there. Compare "
            "activations by the sum of both parts."
        )
        yield RunFinding("note", "kinks", site, text, advice, {"kink_mass": kinks, CURVATURE: total})


def _heavy_tails(site: str, figures: Mapping[str, float]) -> Iterator[RunFinding]:
    kurtosis = figures.get("excess_kurtosis", 0.0)
    if kurtosis >= HEAVY_TAILS:
        text = f"The input has an excess kurtosis of {kurtosis:.3g} (0 for a normal one): few units carry the signal."
        yield RunFinding("note", "heavy tails", site, text, figures={"excess_kurtosis": kurtosis})


def _off_gain(site: str, spec: str, measured: float, ratio: float) -> RunFinding:
    """Return the note about one site's backward gain."""
    text = (
        f"E f'^2 of {spec} is {measured:.3g}, {ratio:.2g} times what an input of mean 0 and deviation 1 gives: squared "
        f"gradients are multiplied by that factor beyond what initialisers plan."
    )
    advice = "Scale the weights in front of it, or normalise, if gradients vanish or explode."
    figures = {"mean_squared_derivative": measured, "ratio": ratio}
    return RunFinding("note", "backward gain", site, text, advice, figures, _SIGNAL)


def _percent(share: float) -> str:
    """Return a share in percent with up to three digits."""
    return f"{100 * share:.3g} %"


def grouped(findings: Iterable[RunFinding]) -> dict[tuple[str, str], list[RunFinding]]:
    """Return findings of one level and topic together: a note that holds at forty sites is one note."""
    groups: dict[tuple[str, str], list[RunFinding]] = {}
    for finding in findings:
        groups.setdefault((finding.level, finding.topic), []).append(finding)
    return groups
