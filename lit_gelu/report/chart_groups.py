"""Which curves of a run are drawn together, and what each picture shows."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lit_gelu.report.charts import MOST_ROWS, MOST_SERIES, heat_map, line_chart, number
from lit_gelu.report.content import LoggedCurve, ReportedRun
from lit_gelu.report.logged_values import is_of_site
from lit_gelu.report.loss_findings import (
    is_learning_rate,
    is_loss,
    is_of_module,
    optimizers_at,
    rule_in_words,
    stability_limit,
)
from lit_gelu.report.safe_text import text
from lit_gelu.report.site_figures import CURVATURE, site_curves, unstated_kinks

_MOST_OTHERS = 24
_ERRORS = ("error", "acc", "f1", "auc", "precision", "recall", "rmse", "mae", "mse")
_OF_LOSS = {
    "top_eigenvalue": "Sharpness: the Hessian's largest eigenvalue",
    "smallest_eigenvalue": "The Hessian's smallest eigenvalue",
    "trace": "Trace of the Hessian",
    "directional_stability": "u'Hu / (-2 g'u) along the steps; from 1 on they raise the quadratic model",
    "critical_sharpness": "Critical sharpness along the steps",
    "gradient_norm": "Norm of the gradient on the probe",
    "probe_loss": "Loss on the probe",
}
_OF_SITES = {
    CURVATURE: "Curvature E|f''|, kinks included: how far an activation is from a straight line where it is used",
    "mean_squared_derivative": "Backward gain E f'²: by how much an activation scales squared gradients",
    "share_saturated": "Saturated share: inputs at which |f'| < 0.01, so that no gradient passes",
    "share_dead": "Dead share: channels that passed no gradient for a whole window of measurements",
    "share_linear": "Linear share: inputs at which |f' - 1| < 0.01, so that the activation does nothing",
    "standard_deviation": "Standard deviation of the inputs",
    "share_non_finite": "Share of NaN and infinite inputs",
}


@dataclass(frozen=True)
class Picture:
    """One chart: what it shows, its curves, and what they are compared with."""

    title: str
    curves: tuple[LoggedCurve, ...]
    limits: tuple[LoggedCurve, ...] = ()
    note: str = ""


def chart_sections(run: ReportedRun) -> list[tuple[str, str, str]]:
    """Return the sections of a page that hold pictures: a name, a title and their HTML."""
    swaps = sorted({swap.step for swap in run.swaps})
    return [
        ("curves", "Curves", _drawn(_pictures(run), swaps)),
        ("maps", "Curvature of the activations", _maps(run, swaps)),
        ("loss", "Curvature of the loss", _drawn(_loss_pictures(run), swaps)),
    ]


def _pictures(run: ReportedRun) -> list[Picture]:
    """Return losses, errors and learning rates together, and every other metric by itself."""
    plain = [curve for curve in run.curves if is_of_module(curve.name) and curve.values]
    plain = [curve for curve in plain if curve.name != "epoch" and not is_of_site(curve.name)]
    rates = tuple(curve for curve in plain if is_learning_rate(curve.name))
    losses = tuple(curve for curve in plain if is_loss(curve.name))
    errors = tuple(c for c in plain if any(e in c.name.lower() for e in _ERRORS) and c not in (*rates, *losses))
    others = [curve for curve in plain if curve not in (*rates, *losses, *errors)]
    pictures = [*_split("Losses", losses), *_split("Errors and scores", errors), *_split("Learning rate", rates)]
    return [*pictures, *(Picture(curve.name, (curve,)) for curve in others[:_MOST_OTHERS])]


def _split(title: str, curves: Sequence[LoggedCurve]) -> list[Picture]:
    """Return pictures of as many curves as one can hold."""
    return [Picture(title, tuple(curves[i : i + MOST_SERIES])) for i in range(0, len(curves), MOST_SERIES)]


def _loss_pictures(run: ReportedRun) -> list[Picture]:
    """Return a picture for each figure of the loss, of all its monitors."""
    pictures: list[Picture] = []
    of_loss = [c for c in run.curves if c.name.startswith("curvature/") and c.values and not is_of_site(c.name)]
    for name, title in _OF_LOSS.items():
        known = {name, f"{name}_finite_differences"}
        found = _split(title, [curve for curve in of_loss if curve.name.rpartition("/")[2] in known])
        pictures += [_with_limit(picture, run) for picture in found] if name == "top_eigenvalue" else found
    return pictures


def _with_limit(picture: Picture, run: ReportedRun) -> Picture:
    """Return the picture of the sharpness with the limit of the optimizer, if it has a known one."""
    monitors = {step: curve.name.rpartition("/")[0] for curve in picture.curves for step in curve.steps}
    values, rule = [], ""
    for step, monitor in sorted(monitors.items()):
        optimizers = optimizers_at(run, step, monitor)
        limit = stability_limit(optimizers[0]) if len(optimizers) == 1 else None
        values.append(math.nan if limit is None else limit)  # a gap where the learning rate is 0 or not known
        rule = rule if limit is None else rule_in_words(optimizers[0])
    if not rule:
        return picture
    curve = LoggedCurve("limit", tuple(sorted(monitors)), tuple(values))
    return replace(picture, limits=(curve,), note=f"Dotted: {rule}.")


def _drawn(pictures: Iterable[Picture], swaps: Sequence[int]) -> str:
    """Return pictures as figures side by side."""
    figures = []
    for picture in pictures:
        svg = line_chart(picture.curves, _in_words(picture), swaps, picture.limits)
        if svg:
            note = f"<p>{text(picture.note)}</p>" if picture.note else ""
            figures.append(
                f"<figure><figcaption><h3>{text(picture.title)}</h3></figcaption>{svg}{_legend(picture.curves)}{note}</figure>"
            )
    return _side_by_side(figures, swaps)


def _side_by_side(figures: Sequence[str], swaps: Sequence[int]) -> str:
    if not figures:
        return ""
    said = '<p class="soft">A dashed vertical line is a swap of activations.</p>' if swaps else ""
    return f'{said}<div class="charts">{"".join(figures)}</div>'


def _in_words(picture: Picture) -> str:
    """Return what a picture shows, for those who do not see it."""
    parts = [
        f"{curve.name} from {number(curve.values[0])} at step {curve.steps[0]} to {number(curve.values[-1])} at step "
        f"{curve.steps[-1]}"
        for curve in picture.curves
    ]
    return f"{picture.title}: {'; '.join(parts)}"


def _legend(curves: Sequence[LoggedCurve]) -> str:
    """Return the names with their lines and last values."""
    rows = [
        f'<li><svg viewBox="0 0 28 10" aria-hidden="true"><line class="line s{i}" x1="0" x2="28" y1="5" y2="5"/></svg>'
        f"{text(curve.name)}: {number(curve.values[-1])}</li>"
        for i, curve in enumerate(curves)
    ]
    return f'<ul class="legend">{"".join(rows)}</ul>'


def _maps(run: ReportedRun, swaps: Sequence[int]) -> str:
    """Return a heat map for each statistic that says something."""
    sites = site_curves(run.curves)
    order = {site.name: place for place, site in enumerate(run.sites)}
    names = sorted(sites, key=lambda name: order.get(name, len(order)))
    figures = []
    for statistic, title in _OF_SITES.items():
        rows = [replace(sites[name][statistic], name=name) for name in names if statistic in sites[name]]
        if statistic == "share_non_finite" and not any(value for row in rows for value in row.values):
            continue
        svg = heat_map(rows, f"{title}, by site and step", swaps)
        unknown = _of_unknown_kinks(unstated_kinks(sites)) if statistic == CURVATURE else ""
        if svg:
            more = f"<p>The first {MOST_ROWS} of {len(rows)} sites.</p>" if len(rows) > MOST_ROWS else ""
            last = ", ".join(f"{row.name or '(the model)'} {number(row.values[-1])}" for row in rows)
            table = f"<details><summary>Last values</summary><p>{text(last)}</p></details>"
            figures.append(
                f"<figure><figcaption><h3>{text(title)}</h3></figcaption>{svg}{more}{unknown}{table}</figure>"
            )
        elif unknown:
            figures.append(f"<figure><figcaption><h3>{text(title)}</h3></figcaption>{unknown}</figure>")
    return _side_by_side(figures, swaps)


def _of_unknown_kinks(sites: Sequence[str]) -> str:
    """Return why the curvature of these sites is not known, and how it becomes known; empty if there are none."""
    if not sites:
        return ""
    shown = ", ".join(name or "(the model)" for name in sites[:MOST_ROWS]) + (", ..." if len(sites) > MOST_ROWS else "")
    said = (
        f"Not known at the end for {shown}: nobody stated whether this activation has kinks. register(name, "
        "facts=ActivationFacts(smoothness=math.inf)) says that it has none, kinks=((x, jump of f'), ...) "
        "where they are."
    )
    return f"<p>{text(said)}</p>"
