"""What curvature looks like: heat maps of layers over time, and where the eigenvalues of the loss lie."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lit_gelu.curvature.loss import SpectralDensity
from lit_gelu.extras import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS = 512
_SMOOTHING = 0.01  # of the span: narrow against the bulk, wide enough that a single eigenvalue is seen

MOST_COLUMNS = 512
"""Columns are halved in number when there are more: a picture shows no more, and memory stays bounded."""

TITLES: Mapping[str, str] = {
    "mean_squared_derivative": "backward gain E f'²: by how much an activation scales squared gradients",
    "curvature": "curvature E|f''|, kinks included: how far an activation is from a straight line where it is used",
    "share_saturated": "share of inputs at which |f'| < 0.01: no gradient passes",
    "share_linear": "share of inputs at which |f' - 1| < 0.01: the activation does nothing",
    "share_dead": "share of channels that passed no gradient for a whole window of measurements",
    "excess_kurtosis": "excess kurtosis of the pre-activation: 0 if normal, large with heavy tails",
}


class HeatMapHistory:
    """Keeps the history of some statistics, named as for `statistic_of`, thinned out when it gets long."""

    def __init__(self, statistics: Sequence[str]) -> None:
        self.statistics = tuple(statistics)
        self._columns: list[tuple[int, dict[str, list[float]]]] = []
        self._keep_every = 1
        self._seen = 0

    def add(self, step: int, figures: Mapping[str, Mapping[str, float]]) -> None:
        """Take in one measurement."""
        if self.statistics and self._seen % self._keep_every == 0:
            row = {site: [statistic_of(values, name) for name in self.statistics] for site, values in figures.items()}
            self._columns.append((step, row))
            if len(self._columns) > MOST_COLUMNS:
                self._columns = self._columns[::2]
                self._keep_every *= 2
        self._seen += 1

    def table(self, statistic: str) -> tuple[list[int], list[str], list[list[float]]]:
        """Return steps, sites, and one row of values a site, NaN where it had none."""
        which = self.statistics.index(statistic)
        sites = list(dict.fromkeys(site for _, row in self._columns for site in row))
        nothing = [float("nan")] * len(self.statistics)
        values = [[row.get(site, nothing)[which] for _, row in self._columns] for site in sites]
        return [step for step, _ in self._columns], sites, values

    def draw(self, statistic: str) -> "Figure | None":
        """Draw one statistic: a row a site, in the order of the model, from left to right the steps."""
        steps, sites, values = self.table(statistic)
        if not any(value == value for row in values for value in row):
            return None
        figure = new_figure("A heat map", figsize=(9, 1.6 + 0.22 * max(4, len(sites))), layout="constrained")
        axes = figure.subplots()
        edges = [*steps, steps[-1] + max(1, steps[-1] - steps[-2] if len(steps) > 1 else 1)]
        mesh = axes.pcolormesh(edges, np.arange(len(sites) + 1), np.asarray(values), cmap="viridis", shading="flat")
        axes.set_yticks(np.arange(len(sites)) + 0.5, [site or "(the model)" for site in sites], fontsize=7)
        axes.invert_yaxis()
        axes.set_xlabel("step")
        axes.set_ylabel("activation, first to last")
        axes.set_title(TITLES.get(statistic, statistic.replace("_", " ")), fontsize=9)
        figure.colorbar(mesh, ax=axes)
        return figure

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs."""
        return {
            "statistics": self.statistics,
            "columns": list(self._columns),
            "keep_every": self._keep_every,
            "seen": self._seen,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned; that of other statistics is left out."""
        if tuple(state_dict["statistics"]) == self.statistics:
            self._columns = list(state_dict["columns"])
            self._keep_every, self._seen = state_dict["keep_every"], state_dict["seen"]


def statistic_of(values: Mapping[str, float], name: str) -> float:
    """Return a site's statistic, NaN if it has none; "curvature" is |f''| and the kink mass, to compare activations."""
    nothing = float("nan")
    if name == "curvature":
        return values.get("mean_abs_second_derivative", nothing) + values.get("kink_mass", nothing)
    return values.get(name, nothing)


def density_figure(spectrum: SpectralDensity, title: str) -> "Figure":
    """Draw how many eigenvalues lie where, on a logarithmic scale: most are near 0, and the few large ones count."""
    figure = new_figure("The picture of a spectral density", figsize=(6.4, 3.6), layout="constrained")
    draw_density(figure.add_subplot(), spectrum, title)
    return figure


def draw_density(axes: "Axes", spectrum: SpectralDensity, title: str) -> None:
    """Draw the same into a plot that is there."""
    low, high = spectrum.nodes.min().item(), spectrum.nodes.max().item()
    width = _SMOOTHING * max(high - low, abs(high), 1e-12)
    grid = torch.linspace(low - 4 * width, high + 4 * width, _POINTS, dtype=torch.float64)
    density = spectrum.density(grid, width)
    axes.semilogy(grid.numpy(), density.numpy())
    axes.set_ylim(bottom=density.max().item() * 1e-7, top=density.max().item() * 3)
    axes.axvline(0.0, color="grey", linewidth=0.8)
    axes.set_xlabel("eigenvalue")
    axes.set_ylabel("density")
    axes.set_title(f"{title}: {spectrum.size} eigenvalues, smoothed by {width:.3g}")
