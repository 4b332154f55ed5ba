"""A picture of the spectral density."""

from typing import TYPE_CHECKING

import torch

from lit_gelu.curvature.loss import SpectralDensity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS = 512
_SMOOTHING = 0.01  # of the span: narrow against the bulk, wide enough that a single eigenvalue is seen


def density_figure(spectrum: SpectralDensity, title: str) -> "Figure":
    """Draw how many eigenvalues lie where, on a logarithmic scale: most are near 0, and the few large ones count.

    Args:
        spectrum: The density.
        title: What it is of.

    Returns:
        A figure of matplotlib's, without pyplot: nothing global is changed.

    Example:
        >>> points = torch.tensor([[0.0, 2.0]], dtype=torch.float64)
        >>> figure = density_figure(SpectralDensity(points, torch.full_like(points, 0.5), 2, 2), "step 0")
        >>> figure.axes[0].get_xlabel()
        'eigenvalue'
    """
    from matplotlib.figure import Figure  # takes a second to import, and is not needed without a picture

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    draw_density(figure.add_subplot(), spectrum, title)
    return figure


def draw_density(axes: "Axes", spectrum: SpectralDensity, title: str) -> None:
    """Draw the same into a plot that is there.

    Args:
        axes: Where to draw.
        spectrum: The density.
        title: What it is of.
    """
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
