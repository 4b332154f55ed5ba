"""`page`: a run as one HTML file. The template writes it; here is what is drawn, and where its points lie."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jinja2

from lit_gelu.display import printable
from lit_gelu.report.content import LoggedCurve, ReportedRun, RunFinding, is_loss
from lit_gelu.report.findings import rates_at, site_curves, stability_limit

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 460, 240, 58, 448, 14, 206  # of a chart, and of what is drawn in it
_MOST_SERIES, _MOST_POINTS = 6, 1000
_LONGEST = 2000  # characters of one text
_ERRORS = ("error", "acc", "f1", "auc", "precision", "recall", "rmse", "mae", "mse")
_OF_LOSS = {
    "top_eigenvalue": "Sharpness: the Hessian's largest eigenvalue",
    "smallest_eigenvalue": "The Hessian's smallest eigenvalue",
    "trace": "Trace of the Hessian",
    "directional_stability": "u'Hu / (-2 g'u) along the steps; from 1 on they raise the quadratic model",
    "probe_loss": "Loss on the probe",
}
_OF_SITES = {
    "mean_abs_second_derivative": "E|f''|, without kinks: how far an activation is from a straight line there",
    "mean_squared_derivative": "Backward gain E f'²: by how much an activation scales squared gradients",
    "share_saturated": "Saturated share: inputs at which |f'| < 0.01, so that no gradient passes",
    "share_dead": "Dead share: channels that passed no gradient for a whole window of measurements",
}


def page(run: ReportedRun) -> str:
    """Return a run as a page of its own: nothing in it comes from elsewhere, and no script runs.

    What comes from files (names, values, errors) is text in it.

    Args:
        run: What to say; `lit_gelu.report.judged` adds the findings.

    Returns:
        HTML in UTF-8.

    Example:
        >>> "<h1>&lt;b&gt;</h1>" in page(ReportedRun(title="<b>", source="runs/0", made="2026-01-01T00:00:00Z"))
        True
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lit_gelu.report", ""),
        autoescape=True,
        finalize=_text,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    findings: dict[tuple[str, str], list[RunFinding]] = {}  # a note that holds at forty sites is one note
    for finding in run.findings:
        findings.setdefault((finding.level, finding.topic), []).append(finding)
    last = [run.curve(name) for name in ("val_loss", "val_error", "test_loss", "test_error")]
    swaps = sorted({swap.step for swap in run.swaps})
    sections = {
        "Curves": _curves(run),
        "Curvature of the loss": _loss_curves(run),
        "Curvature of the activations": _activation_curves(run),
    }
    return environment.get_template("page.html.jinja").render(
        run=run,
        groups=findings.values(),
        facts={f"{curve.name}, last": number(curve.values[-1]) for curve in last if curve is not None},
        sections={title: _pictures(groups, swaps) for title, groups in sections.items() if any(groups.values())},
        number=number,
    )


def number(value: float) -> str:
    """Return a number for a person: four digits."""
    return f"{value:.4g}"


def _text(value: Any) -> Any:
    """Return what a template writes: text of bounded length, and without characters that an encoding refuses."""
    return printable(value[:_LONGEST]) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _curves(run: ReportedRun) -> dict[str, list[LoggedCurve]]:
    groups: dict[str, list[LoggedCurve]] = {"Losses": [], "Errors and scores": [], "Learning rate": []}
    for curve in run.curves:
        if curve.name.startswith(("learning_rate", "lr-")):  # the second is LearningRateMonitor's
            groups["Learning rate"].append(curve)
        elif is_loss(curve.name):
            groups["Losses"].append(curve)
        elif any(word in curve.name.lower() for word in _ERRORS):
            groups["Errors and scores"].append(curve)
        elif not curve.name.startswith(("curvature/", "activation_swap/", "export/", "epoch")):
            groups[curve.name] = [curve]
    return groups


def _loss_curves(run: ReportedRun) -> dict[str, list[LoggedCurve]]:
    groups: dict[str, list[LoggedCurve]] = {title: [] for title in _OF_LOSS.values()}
    for curve in run.curves:
        prefix, _, name = curve.name.rpartition("/")
        if prefix.startswith("curvature/") and name in _OF_LOSS:
            groups[_OF_LOSS[name]].append(curve)
        if name == "top_eigenvalue" and len(run.optimizers) == 1:
            rates = [max(rates_at(run, prefix, step), default=math.nan) for step in curve.steps]
            limits = tuple(stability_limit(run.optimizers[0], rate) for rate in rates)
            if any(map(math.isfinite, limits)):
                groups[_OF_LOSS[name]].append(LoggedCurve("limit of the optimizer", curve.steps, limits))
    return groups


def _activation_curves(run: ReportedRun) -> dict[str, list[LoggedCurve]]:
    groups: dict[str, list[LoggedCurve]] = {title: [] for title in _OF_SITES.values()}
    for site, curves in site_curves(run).items():
        for statistic, curve in curves.items():
            if statistic in _OF_SITES and any(map(math.isfinite, curve.values)):
                groups[_OF_SITES[statistic]].append(replace(curve, name=site))
    return groups


def _pictures(groups: Mapping[str, Sequence[LoggedCurve]], swaps: Sequence[int]) -> list[dict[str, Any]]:
    """Return a picture of each title, or several of as many curves as one can hold."""
    parts = [(t, each[i : i + _MOST_SERIES]) for t, each in groups.items() for i in range(0, len(each), _MOST_SERIES)]
    return [{"title": title, "curves": curves, **line_chart(curves, swaps)} for title, curves in parts]


@dataclass(frozen=True)
class Axis:
    """One axis, from values to places."""

    low: float
    high: float
    start: float  # place of `low`
    end: float  # place of `high`
    logarithmic: bool = False

    @classmethod
    def of(cls, values: Iterable[float], start: float, end: float, margin: float = 0.04) -> "Axis":
        """Return an axis for the finite ones of some values, logarithmic if all are positive and span a factor 100."""
        finite = [value for value in values if abs(value) < 1e300] or [0.0, 1.0]
        low, high = min(finite), max(finite)
        if low > 0 and high / low >= 100:
            return cls(low, high, start, end, logarithmic=True)
        span = (high - low) * margin if high - low > abs(high) * 1e-12 else abs(high) / 2 or 0.5
        return cls(low - span, high + span, start, end)

    def place(self, value: float) -> float:
        """Return where a value is drawn."""
        low, high, at = (math.log10(v) if self.logarithmic else v for v in (self.low, self.high, value))
        return round(self.start + (at - low) / (high - low) * (self.end - self.start), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Return places and texts of some round values."""
        if self.logarithmic:
            low, high = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            values = [10.0**power for power in range(low, high + 1, max(1, -(-(high - low + 1) // 5)))]
        else:
            span = (self.high - self.low) / 5
            power = 10.0 ** math.floor(math.log10(span))
            step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= span * (1 - 1e-9))
            first = math.ceil(self.low / step - 1e-9)
            values = [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]
        return [(self.place(value), number(value)) for value in values]


def line_chart(curves: Sequence[LoggedCurve], swaps: Sequence[int]) -> dict[str, Any]:
    """Return where ticks, swaps and curves over steps are drawn; a line breaks where a value is not finite."""
    steps = [step for curve in curves for step in (curve.steps[0], curve.steps[-1])]
    across = Axis(min(steps), max(max(steps), min(steps) + 1), LEFT, RIGHT)
    down = Axis.of([value for curve in curves for value in curve.values], BOTTOM, TOP)
    lines = []
    for curve in curves:
        count = len(curve.steps)
        last = max(1, min(count, _MOST_POINTS) - 1)
        places = [round(i * (count - 1) / last) for i in range(min(count, _MOST_POINTS))]  # first and last too
        runs: list[list[tuple[float, float]]] = [[]]
        for step, value in ((curve.steps[i], curve.values[i]) for i in places):
            if math.isfinite(value) and (value > 0 or not down.logarithmic):
                runs[-1].append((across.place(step), down.place(value)))
            elif runs[-1]:
                runs.append([])
        lines.append({"name": curve.name, "runs": [each for each in runs if each], "marked": count <= 40})
    inside = [(across.place(step), step) for step in swaps if across.low <= step <= across.high]
    return {"across": across.ticks(), "down": down.ticks(), "swaps": inside, "lines": lines}
