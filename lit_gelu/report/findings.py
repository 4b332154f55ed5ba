"""What the figures of a run mean, in plain sentences: pure functions from a run to its findings.

The thresholds are this package's choice where no source is named: no paper says how many dead units a net can spare.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from lit_gelu.report.content import Level, LoggedCurve, OptimizerSettings, ReportedRun, RunFinding, is_loss

_ORDER: tuple[Level, ...] = ("alarm", "warning", "note", "good")
_SHARPNESSES = frozenset({"preconditioned_sharpness", "batch_sharpness"})  # logged with a limit of the optimizer's own
_NEAR_EDGE, _BEYOND_EDGE = 0.8, 1.5  # shares of the optimizer's limit

_LU = "Lu et al. 2019, arXiv 1903.06733"
_GLOROT = "Glorot and Bengio 2010, PMLR 9"
_COHEN = "Cohen et al. 2021, arXiv 2103.00065"


@dataclass(frozen=True)
class _SiteRule:
    statistic: str  # of a site, whose last figure reaches the threshold
    threshold: float
    level: Level
    topic: str
    text: str
    advice: str
    source: str = ""


_DEAD = "{:.3g} % of the channels passed no gradient in any of the last measurements: these units are dead."
_REVIVE = (
    "Lower the learning rate or warm it up, check the bias in front, or swap it for an activation with a slope on both "
    "sides, such as leaky_relu."
)
_SITE_RULES = (  # of one topic the first that holds
    _SiteRule(
        "share_non_finite",
        math.ulp(0.0),
        "alarm",
        "non-finite inputs",
        "{:.3g} % of the inputs were NaN or infinite at the last measurement.",
        "The run has diverged before this layer. Lower the learning rate, or clip gradients.",
    ),
    _SiteRule("share_dead", 0.5, "alarm", "dead units", _DEAD, _REVIVE, _LU),
    _SiteRule("share_dead", 0.1, "warning", "dead units", _DEAD, _REVIVE, _LU),
    _SiteRule(  # ReLU has a half for a symmetric input, which is no fault
        "share_saturated",
        0.9,
        "warning",
        "saturation",
        "At {:.3g} % of its inputs |f'| < 0.01: almost no gradient passes.",
        "Inputs lie in the flat part. Normalise in front of it, or scale the weights by lit_gelu.activations.gain.",
        _GLOROT,
    ),
)


def judged(run: ReportedRun) -> ReportedRun:
    """Return a run with its findings, the gravest first."""
    findings = [*_of_sites(run), *_of_curves(run)]
    if run.status == "failed":
        text = f"The run ended with an error: {run.failure or 'not recorded'}"
        findings.insert(0, RunFinding("alarm", "failed run", "", text))
    elif run.status == "interrupted":
        findings.insert(0, RunFinding("warning", "interrupted run", "", "The run was interrupted before its end."))
    for file in run.files:
        error = {} if file.largest_error is None else {"largest_error": file.largest_error}
        level, text, advice = _PROOFS[file.proof]
        text = text.format(trouble=file.trouble, provider=file.provider or "an unnamed provider")
        text += f" Largest error: {file.largest_error:.2e} of the largest output." if error else ""
        findings.append(RunFinding(level, "exported file", file.name, text, advice, error))
    return replace(run, findings=tuple(sorted(findings, key=lambda finding: _ORDER.index(finding.level))))


def site_curves(run: ReportedRun) -> dict[str, dict[str, LoggedCurve]]:
    """Return the curves that `ActivationCurvatureMonitor` logged, by site and statistic."""
    from lit_gelu.curvature import STATISTICS

    sites: dict[str, dict[str, LoggedCurve]] = {}
    for curve in run.curves:
        site, _, statistic = curve.name.removeprefix("curvature/").rpartition("/")
        is_known = statistic in STATISTICS or statistic in {"share_dead", "curvature"}
        if curve.name.startswith("curvature/") and site and is_known and not site.endswith("/gaussian") and curve.steps:
            sites.setdefault(site, {})[statistic] = curve
    return sites


def _of_sites(run: ReportedRun) -> Iterator[RunFinding]:
    dead: list[float] = []
    for site, curves in site_curves(run).items():
        step = max(curve.steps[-1] for curve in curves.values())
        # After a swap, figures of the old activation may have none of the new one that would replace them.
        figures = {name: curve.values[-1] for name, curve in curves.items() if curve.steps[-1] == step}
        topics = set[str]()
        for rule in _SITE_RULES:
            share = figures.get(rule.statistic, math.nan)
            if share >= rule.threshold and rule.topic not in topics:
                topics.add(rule.topic)
                text, used = rule.text.format(100 * share), {rule.statistic: share}
                yield RunFinding(rule.level, rule.topic, site, text, rule.advice, used, rule.source)
        dead += [figures["share_dead"]] if math.isfinite(figures.get("share_dead", math.nan)) else []
    if dead and max(dead) < 0.1:
        text = f"No site has lost a tenth of its units: at most {100 * max(dead):.3g} % of the channels are dead."
        yield RunFinding("good", "dead units", "", text, figures={"share_dead": max(dead)})


def _of_curves(run: ReportedRun) -> Iterator[RunFinding]:
    for curve in run.curves:
        prefix, _, name = curve.name.rpartition("/")
        finite = [value for value in curve.values if math.isfinite(value)]
        if is_loss(curve.name) and len(finite) < len(curve.values):
            step = next(s for s, value in zip(curve.steps, curve.values, strict=True) if not math.isfinite(value))
            ends = "" if math.isfinite(curve.values[-1]) else " and at the end"
            text = f"{curve.name} was NaN or infinite first at step {step}{ends}."
            advice = "Lower the learning rate, clip gradients, or look for a logarithm or a division of 0."
            yield RunFinding("alarm", "loss not finite", curve.name, text, advice, {"step": float(step)})
        elif finite and name == "top_eigenvalue":
            yield _sharpness(run, curve, prefix)
        elif finite and name in _SHARPNESSES and (limits := run.curve(f"{curve.name}_limit")) is not None:
            yield from _of_limit(curve, limits)


def stability_limit(optimizer: OptimizerSettings, rate: float) -> float:
    """Return the largest sharpness at which an optimizer is stable on a quadratic loss; NaN if it is not known.

    On the Hessian's eigenvalue: ``2 (1 + beta) / eta - w`` for rate eta, momentum beta and weight decay w, and with
    Nesterov's momentum ``(2 + 2 beta) / (eta (1 + 2 beta)) - w``. Adam's limit is of another matrix. Of several
    parameter groups the largest eta and w give a lower bound. Source: Cohen et al. 2021, arXiv 2103.00065, appendix B.

    Example:
        >>> round(stability_limit(OptimizerSettings("SGD", momentum=0.9, plain=True), 0.1), 9)
        38.0
    """
    beta = optimizer.momentum
    if not optimizer.plain or not rate > 0 or not 0 <= beta < 1:
        return math.nan
    scale = 1 + 2 * beta if optimizer.nesterov else 1.0
    return 2 * (1 + beta) / (rate * scale) - optimizer.weight_decay


def rates_at(run: ReportedRun, monitor: str, step: int) -> list[float]:
    """Return the first and, of several groups, the largest learning rate that a monitor logged with its figures."""
    logged = (run.curve(f"{monitor}/{name}") for name in ("learning_rate", "largest_learning_rate"))
    return [value for c in logged if c is not None for at, value in zip(c.steps, c.values, strict=True) if at == step]


def _sharpness(run: ReportedRun, curve: LoggedCurve, monitor: str) -> RunFinding:
    step, top = [(s, v) for s, v in zip(curve.steps, curve.values, strict=True) if math.isfinite(v)][-1]
    rates = rates_at(run, monitor, step)
    optimizer = run.optimizers[0] if len(run.optimizers) == 1 else None
    limit = stability_limit(optimizer, max(rates)) if optimizer is not None and rates else math.nan
    where, text = curve.name, f"The sharpness was {top:.3g} at step {step}"
    if not limit > 0:
        text += ". Nothing is decided from it: a limit is known for one optimizer of plain SGD, at a known rate."
        return RunFinding("note", "sharpness", where, text, "", {"top_eigenvalue": top}, _COHEN)
    ratio = top / limit
    figures = {"top_eigenvalue": top, "limit": limit, "ratio": ratio}
    text += f", {ratio:.2g} of the limit {limit:.3g} at learning rate {max(rates):.3g}"
    if ratio < _NEAR_EDGE or len(set(rates)) == 1:
        return _judged(where, text, figures)
    text += ". The limit is higher where the sharp directions belong to parameter groups with lower rates."
    return RunFinding("note", "edge of stability", where, text, "", figures, _COHEN)


def _of_limit(curve: LoggedCurve, limits: LoggedCurve) -> Iterator[RunFinding]:
    """Judge a sharpness that was logged with the optimizer's own limit, and say since when it has been near it."""
    at = dict(zip(limits.steps, limits.values, strict=True))
    points = zip(curve.steps, curve.values, strict=True)
    shares = {s: v / at[s] for s, v in points if math.isfinite(v) and at.get(s, math.nan) > 0}
    if not shares:
        return
    step, ratio = [*shares.items()][-1]
    name = curve.name.rpartition("/")[2]
    text = f"The {name.replace('_', ' ')} was {ratio * at[step]:.3g} at step {step}"
    text += f", {ratio:.2g} of its limit {at[step]:.3g}"
    since = step
    for earlier, share in reversed(shares.items()):
        if share < _NEAR_EDGE:
            break
        since = earlier
    text += f", and near it since step {since}" if ratio >= _NEAR_EDGE and since < step else ""
    yield _judged(curve.name, text, {name: ratio * at[step], "limit": at[step], "ratio": ratio})


def _judged(where: str, text: str, figures: Mapping[str, float]) -> RunFinding:
    """Say what a share of the optimizer's limit means."""
    if figures["ratio"] < _NEAR_EDGE:
        return RunFinding("good", "edge of stability", where, f"{text}: there is room.", "", figures, _COHEN)
    if figures["ratio"] < _BEYOND_EDGE:
        text += ": training is at the edge of stability, where the learning rate itself holds the sharpness down."
        advice = "This is common and no fault. A higher learning rate will flatten further or diverge."
        return RunFinding("note", "edge of stability", where, text, advice, figures, _COHEN)
    text += ". On a quadratic loss, full-batch steps would grow along the top eigenvector."
    advice = "Lower the learning rate or warm it up, unless the loss still falls. Batch noise blurs this limit."
    return RunFinding("warning", "edge of stability", where, text, advice, figures, _COHEN)


_PROOFS: Mapping[str, tuple[Level, str, str]] = {
    "unreadable": ("warning", "The file cannot be read: {trouble}", ""),
    "failed": (
        "alarm",
        "The file does not compute what the model computes: the comparison with PyTorch failed.",
        "Read the comparison before the file is used.",
    ),
    "none": (
        "note",
        "Nothing says that this file computes what the model computes.",
        "lit-gelu parity FILE --ckpt CKPT, or OnnxExport(check=True), compares it with PyTorch.",
    ),
    "passed": ("good", "Compared with PyTorch on {provider} and passed.", ""),
}
