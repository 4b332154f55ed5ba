"""The figure that ``lit-gelu curvature`` draws."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lit_gelu.cli.curvature import CurvatureReport
from lit_gelu.curvature.plots import draw_density, statistic_of

_STATISTICS = {
    "curvature": ("E|f''|, kinks included, per unit of input", "curvature of the activation\nwhere its inputs are"),
    "mean_squared_derivative": ("E f'²", "backward gain: what squared gradients\nare multiplied by in the mean"),
}
_MOST_LABELS = 40  # more names do not fit beside a plot


def draw(report: CurvatureReport) -> Figure:
    """Draw the activations beside what a normal input would give, the trace by layer, and the spectral density."""
    trace = None if report.loss is None else report.loss.trace
    spectrum = None if report.loss is None else report.loss.spectrum
    panels = 2 * bool(report.activations) + (trace is not None) + (spectrum is not None)
    rows = max(len(report.activations), 0 if trace is None else len(trace.by_layer), 4)
    figure = Figure(figsize=(4.8 * max(panels, 1), min(12.0, 2.6 + 0.24 * rows)), layout="constrained")
    figure.suptitle(f"{report.model} ({Path(report.source).name}): {report.examples}")
    if not panels:
        return figure
    waiting = iter(figure.subplots(1, panels, squeeze=False).flat)
    if report.activations:
        for name in _STATISTICS:
            _draw_statistic(next(waiting), report, name)
    if trace is not None:
        axes = next(waiting)
        errors = [trace.standard_error_by_layer[layer] for layer in trace.by_layer]
        axes.barh(range(len(errors)), list(trace.by_layer.values()), xerr=errors, color="tab:blue", ecolor="black")
        _name_rows(axes, trace.by_layer)
        axes.set_xlabel("trace of the layer's block; bars: standard error")
        axes.set_title(f"{report.matrix}: trace by layer,\n{trace.trace:.4g} ± {trace.standard_error:.2g} in all")
    if spectrum is not None:
        axes = next(waiting)
        draw_density(axes, spectrum, "")
        axes.set_title(f"{report.matrix}: where its\n{spectrum.size:,} eigenvalues lie")
    for axes in figure.axes:
        axes.title.set_fontsize(9)
    return figure


def _draw_statistic(axes: Axes, report: CurvatureReport, name: str) -> None:
    """Draw a statistic of every site, measured and of a normal input."""
    sites = list(report.activations)
    for label, table, marker in (
        ("measured", report.activations, "o"),
        ("normal input, same mean and deviation", report.gaussian, "x"),
    ):
        values = [statistic_of(table.get(site, {}), name) for site in sites]
        axes.plot(values, range(len(sites)), marker, label=label)
    _name_rows(axes, report.activations)
    axes.set_xlim(0, 1.15 * axes.get_xlim()[1])
    label, title = _STATISTICS[name]
    axes.set_xlabel(label)
    axes.set_title(title)
    axes.legend(fontsize=7, frameon=False)


def _name_rows(axes: Axes, names: Mapping[str, object]) -> None:
    """Write the names beside the rows, first on top; of many, every so many."""
    shown = list(enumerate(names))[:: max(1, -(-len(names) // _MOST_LABELS))]
    axes.set_yticks([row for row, _ in shown], [name or "(the model)" for _, name in shown], fontsize=7)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
