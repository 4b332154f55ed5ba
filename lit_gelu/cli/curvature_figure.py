"""The figure that ``lit-gelu curvature`` draws."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lit_gelu.cli.curvature import CurvatureReport
from lit_gelu.curvature.loss_measurement import LossMeasurement
from lit_gelu.curvature.plots import draw_density, statistic_of

_SHARES = {
    "share_falling": ("f' ≤ -0.01: falling", "tab:red"),
    "share_saturated": ("|f'| < 0.01: saturated", "tab:gray"),
    "share_transition": ("in transition", "tab:blue"),
    "share_linear": ("|f' - 1| < 0.01: linear", "tab:green"),
}
_BESIDE_GAUSSIAN = {
    "mean_squared_derivative": ("E f'²", "backward gain: what squared gradients\nare multiplied by in the mean"),
    "curvature": ("E|f''|, kinks included, per unit of input", "curvature of the activation\nwhere its inputs are"),
}
_MOST_LABELS = 40  # more names do not fit beside a plot

Panel = Callable[[Axes, CurvatureReport], None]


def draw(report: CurvatureReport) -> Figure:
    """Draw what was measured: a panel a subject, with a title that says what it shows."""
    panels: list[Panel] = []
    if report.activations:
        panels += [*(partial(_beside_gaussian, name=name) for name in _BESIDE_GAUSSIAN), _shares]
    loss = report.loss or LossMeasurement()
    if loss.trace is not None:
        panels.append(_trace)
    if loss.spectrum is not None:
        panels.append(_density)
    panels.append(_summary)
    rows = -(-len(panels) // 3)
    lines = max(4, len(report.activations), 0 if loss.trace is None else len(loss.trace.by_layer))
    figure = Figure(figsize=(15, rows * min(12.0, 2.4 + 0.24 * lines)), layout="constrained")
    places = figure.subplots(rows, 3, squeeze=False).flat
    for number, axes in enumerate(places):
        if number < len(panels):
            panels[number](axes, report)
        else:
            axes.set_axis_off()
    data = f"{report.samples} examples of {report.data}, {report.settings.split}"
    figure.suptitle(f"{report.model} ({Path(report.source).name}): {data}")
    return figure


def _beside_gaussian(axes: Axes, report: CurvatureReport, name: str) -> None:
    """Draw a statistic of every site, measured and of a normal input."""
    for label, table, marker, colour in (
        ("measured", report.activations, "o", "tab:blue"),
        ("normal input, same mean and deviation", report.gaussian, "x", "tab:orange"),
    ):
        sites = list(report.activations)
        points = [(statistic_of(table[site], name), row) for row, site in enumerate(sites) if site in table]
        axes.plot(
            [x for x, _ in points], [row for _, row in points], linestyle="", label=label, marker=marker, color=colour
        )
    _name_rows(axes, report.activations)
    axes.set_xlim(0, 1.15 * axes.get_xlim()[1])
    label, title = _BESIDE_GAUSSIAN[name]
    axes.set_xlabel(label)
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=7, frameon=False, loc="lower left")


def _shares(axes: Axes, report: CurvatureReport) -> None:
    """Draw, as bars that add up to 1, in which part of the activation its inputs are."""
    table = list(report.activations.values())
    left = [0.0] * len(table)
    for name, (label, colour) in _SHARES.items():
        widths = [row[name] if row[name] == row[name] else 0.0 for row in table]
        axes.barh(range(len(table)), widths, left=left, label=label, color=colour, height=0.8)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    _name_rows(axes, report.activations)
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of inputs")
    axes.set_title("in which part of the activation\nits inputs are", fontsize=9)
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, frameon=False)


def _trace(axes: Axes, report: CurvatureReport) -> None:
    """Draw the trace of each layer with its standard error."""
    if report.loss is None or report.loss.trace is None:
        return
    trace = report.loss.trace
    errors = [trace.standard_error_by_layer[layer] for layer in trace.by_layer]
    axes.barh(range(len(errors)), list(trace.by_layer.values()), xerr=errors, color="tab:blue", ecolor="black")
    _name_rows(axes, trace.by_layer)
    axes.set_xlabel("trace of the layer's block; bars: standard error")
    axes.set_title(
        f"{report.matrix}: trace by layer,\n{trace.trace:.4g} ± {trace.standard_error:.2g} in all", fontsize=9
    )


def _density(axes: Axes, report: CurvatureReport) -> None:
    if report.loss is not None and report.loss.spectrum is not None:
        draw_density(axes, report.loss.spectrum, "")
        axes.set_title(f"{report.matrix}: where its {report.loss.parameters:,} eigenvalues lie", fontsize=9)


def _summary(axes: Axes, report: CurvatureReport) -> None:
    """Write down the numbers that have no plot."""
    lines, loss = [], report.loss
    if loss is not None:
        lines += [
            f"probe loss {loss.figures['probe_loss',]:.5g} ({report.settings.mode} mode)",
            f"gradient norm {loss.figures['gradient_norm',]:.4g}",
        ]
        for name, pair in loss.eigenpairs.items():
            error = "" if pair.residual < 1e-6 * abs(pair.value) else f" ± {pair.residual:.1g}"
            converged = "" if pair.converged else ", not converged"
            lines.append(f"{name.replace('_', ' ')} {pair.estimate:.5g}{error}{converged}")
        if loss.trace is not None:
            lines.append(f"Frobenius norm {loss.trace.frobenius_norm:.4g}")
    axes.set_axis_off()
    axes.text(0, 1, "\n".join([*lines, *report.notes]), va="top", fontsize=10, wrap=True, transform=axes.transAxes)


def _name_rows(axes: Axes, names: Mapping[str, object]) -> None:
    """Write the names beside the rows, first on top; of many, every so many."""
    every = -(-len(names) // _MOST_LABELS)
    shown = list(enumerate(names))[:: max(1, every)]
    axes.set_yticks([row for row, _ in shown], [name or "(the model)" for _, name in shown], fontsize=7)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
