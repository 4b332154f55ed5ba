"""The figure that ``lit-gelu curvature`` draws."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lit_gelu.cli.curvature import MATRICES
from lit_gelu.curvature.activation.statistics import statistic_of
from lit_gelu.curvature.loss_measurement import LossMeasurement, draw_density

_STATISTICS = {
    "curvature": "E|f''|, kinks included, per unit of input",
    "mean_squared_derivative": "E f'²: what squared gradients\nare multiplied by in the mean",
}
_MOST_LABELS = 40  # more names do not fit beside a plot


def draw(report: dict[str, Any], loss: LossMeasurement | None) -> Figure:
    """Draw the activations beside what a normal input would give, the trace by layer, and the spectral density."""
    activations, matrix = report["activations"], MATRICES[report["settings"]["operator"]]
    trace, spectrum = (None, None) if loss is None else (loss.trace, loss.spectrum)
    panels = 2 * bool(activations) + (trace is not None) + (spectrum is not None)
    rows = max(len(activations), 0 if trace is None else len(trace.by_layer), 4)
    figure = Figure(figsize=(4.8 * max(panels, 1), min(12.0, 2.6 + 0.24 * rows)), layout="constrained")
    figure.suptitle(
        f"{report['model']} ({Path(report['checkpoint']).name}): {report['samples']} examples of {report['data']}"
    )
    axes = iter(figure.subplots(1, max(panels, 1), squeeze=False).flat)
    for name, title in _STATISTICS.items() if activations else ():
        panel = next(axes)
        tables = {"measured": activations, "normal input, same mean and deviation": report["gaussian"]}
        for marker, (label, table) in zip("ox", tables.items(), strict=True):
            values = [statistic_of(table.get(site, {}), name) for site in activations]
            panel.plot(values, range(len(values)), marker, label=label)
        _name_rows(panel, list(activations))
        panel.set_xlim(0, 1.15 * panel.get_xlim()[1])
        panel.set_title(title, fontsize=9)
        panel.legend(fontsize=7, frameon=False)
    if trace is not None:
        panel = next(axes)
        errors = [trace.standard_error_by_layer[layer] for layer in trace.by_layer]
        panel.barh(range(len(errors)), list(trace.by_layer.values()), xerr=errors, color="tab:blue", ecolor="black")
        _name_rows(panel, list(trace.by_layer))
        total = f"{trace.trace:.4g} ± {trace.standard_error:.2g} in all"
        panel.set_title(f"{matrix}: trace by layer,\n{total}; bars: standard error", fontsize=9)
    if spectrum is not None:
        draw_density(next(axes), spectrum, matrix)
    return figure


def _name_rows(axes: Axes, names: list[str]) -> None:
    """Write the names beside the rows, first on top; of many, every so many."""
    shown = list(enumerate(names))[:: max(1, -(-len(names) // _MOST_LABELS))]
    axes.set_yticks([row for row, _ in shown], [name or "(the model)" for _, name in shown], fontsize=7)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
