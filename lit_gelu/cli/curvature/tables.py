"""The tables that ``lit-gelu curvature`` prints."""

from collections.abc import Mapping

from rich.table import Table

from lit_gelu.cli.curvature.checkpoint import CurvatureReport
from lit_gelu.curvature.loss import TraceEstimate
from lit_gelu.curvature.loss_measurement import LossMeasurement
from lit_gelu.curvature.plots import statistic_of

_COLUMNS = {
    "mean": "mean",
    "standard_deviation": "std",
    "skewness": "skew",
    "excess_kurtosis": "kurtosis",
    "mean_squared_derivative": "E f'^2",
    "curvature": "E|f''|",
    "share_saturated": "|f'|<.01",
    "share_linear": "|f'-1|<.01",
    "share_decreasing": "f'<0",
    "share_dead": "dead units",
}

_ROUNDING = 1e-6  # of float32 products


def tables(report: CurvatureReport) -> list[Table]:
    """Return what was measured as tables."""
    made = []
    if report.activations or report.refused:
        made.append(_of_activations(report))
    made.append(_of_loss(report))
    if report.loss is not None and report.loss.trace is not None:
        made.append(_of_layers(report.loss.trace))
    return made


def _of_activations(report: CurvatureReport) -> Table:
    """Return a row a site: measured, and in parentheses what a normal input would give."""
    made = Table(
        title=f"activations of {report.model} on {report.samples} examples of {report.data}, {report.settings.split}",
        caption="in parentheses: of a normal input with this mean and deviation; E|f''|: kinks included",
        title_justify="left",
    )
    made.add_column("site")
    for title in _COLUMNS.values():
        made.add_column(title, justify="right")
    for site, row in report.activations.items():
        predicted = report.gaussian.get(site, {})
        made.add_row(site or "(the model)", *(_cell(name, row, predicted) for name in _COLUMNS))
    for site, reason in report.refused.items():
        made.add_row(site, f"not observed: {reason}")
    return made


def _cell(name: str, measured: Mapping[str, float], predicted: Mapping[str, float]) -> str:
    value, expected = statistic_of(measured, name), statistic_of(predicted, name)
    text = _number(name, value)
    return text if expected != expected else f"{text} ({_number(name, expected)})"


def _number(name: str, value: float) -> str:
    if value != value:
        return "-"
    return f"{value:.1%}" if name.startswith("share_") else f"{value:.3f}"


def _of_loss(report: CurvatureReport) -> Table:
    """Return a row a figure of the loss, and the notes."""
    settings = report.settings
    title = f"loss of {report.model} on {report.samples} examples, {settings.mode} mode"
    loss = report.loss
    if loss is not None:
        title += f"; {report.matrix} of {loss.parameters:,} parameters"
    made = Table(title=title, title_justify="left", caption=" ".join(report.notes) or None, caption_justify="left")
    for column in ("quantity", "value", "error", "remark"):
        made.add_column(column, justify="right" if column in {"value", "error"} else "left")
    if loss is not None:
        _add_rows(made, loss)
    return made


def _add_rows(made: Table, loss: LossMeasurement) -> None:
    made.add_row("probe loss", f"{loss.figures['probe_loss',]:.6g}", "", "mean over the examples")
    made.add_row("gradient norm", f"{loss.figures['gradient_norm',]:.4g}", "", "")
    for name, pair in loss.eigenpairs.items():
        remark = "converged" if pair.converged else "not converged: more --lanczos-steps"
        error = "rounding" if pair.residual < _ROUNDING * abs(pair.value) else f"{pair.residual:.1g}"
        made.add_row(name.replace("_", " "), f"{pair.estimate:.6g}", error, f"{remark}; error: residual")
    if loss.trace is not None:
        trace = loss.trace
        remark = f"error: standard error of {trace.probes} probes"
        made.add_row("trace", f"{trace.trace:.6g}", f"{trace.standard_error:.2g}", remark)
        made.add_row("Frobenius norm", f"{trace.frobenius_norm:.6g}", "", "root of the sum of squared eigenvalues")


def _of_layers(trace: TraceEstimate) -> Table:
    """Return the trace of each layer."""
    made = Table(title="trace by layer; they add up to the whole", title_justify="left")
    for column in ("layer", "trace", "standard error", "share"):
        made.add_column(column, justify="left" if column == "layer" else "right")
    for layer, value in trace.by_layer.items():
        share = f"{value / trace.trace:.1%}" if trace.trace else "-"
        made.add_row(layer or "(the model)", f"{value:.4g}", f"{trace.standard_error_by_layer[layer]:.2g}", share)
    return made
