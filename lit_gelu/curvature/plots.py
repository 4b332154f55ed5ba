"""What pictures of curvature show: a statistic of each site, and where the eigenvalues of the loss lie."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from lit_gelu.curvature.loss import SpectralDensity
from lit_gelu.extras import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS = 512
_SMOOTHING = 0.01  # of the span: narrow against the bulk, wide enough that a single eigenvalue is seen


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
