"""Activations drawn: f, f' and f'' side by side, a line for each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from lit_gelu.activations.naming.names import Names
from lit_gelu.activations.naming.scalar import ScalarActivation, checked_interval
from lit_gelu.errors import ArgumentError
from lit_gelu.extras import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = ("f(x)", "f'(x)", "f''(x)")
_POINTS = 1601
_MOST = 10  # lines that can be told apart


def plot(
    *specs: Any,
    interval: tuple[float, float] = (-4.0, 4.0),
    derivatives: Sequence[int] = (0, 1, 2),
    registry: Names | None = None,
) -> "Figure":
    """Draw f, f' and f'' of some activations side by side.

    ``matplotlib.pyplot`` is not touched. A notebook shows the figure, and ``figure.savefig("family.svg")`` writes it.

    Args:
        *specs: One to ten, each any spec, or a module, whose parameters are then used as they are now.
        interval: From where to where pre-activations go; finite.
        derivatives: What to draw: 0 is f itself, 1 is f', 2 is f''.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        A ``matplotlib.figure.Figure`` with one panel for each order, in ascending order, and one line for each
        activation, computed in float64.

    Raises:
        ArgumentError: If there are no activations or too many to be told apart, if one is not elementwise, if the
            interval is empty or infinite, or if an order is none of 0, 1 and 2.
        MissingExtraError: If matplotlib is not installed.

    Example:
        >>> figure = plot("gelu", "silu", derivatives=[1])
        >>> [line.get_label() for line in figure.axes[0].get_lines()[:2]]
        ['gelu', 'silu']
        >>> round(float(figure.axes[0].get_lines()[0].get_ydata().max()), 4)  # at the square root of 2
        1.1289
    """
    low, high = checked_interval(interval)
    if not 0 < len(specs) <= _MOST:
        raise ArgumentError(f"Cannot plot {len(specs)} activations: give one to {_MOST}, more cannot be told apart.")
    orders = sorted(set(derivatives))
    if not orders or not set(orders) <= {0, 1, 2}:
        raise ArgumentError(f"Cannot plot derivatives {list(derivatives)}. Give some of 0 (f itself), 1 and 2.")
    scalars = [ScalarActivation.of(spec, registry) for spec in specs]
    figure = new_figure("A plot of activations", figsize=(13 / 3 * max(len(orders), 1.5), 4), layout="constrained")
    x = torch.linspace(low, high, _POINTS, dtype=torch.float64)
    places = figure.subplots(1, len(orders), squeeze=False)[0]
    for axes, order in zip(places, orders, strict=True):
        for scalar in scalars:
            axes.plot(x.numpy(), scalar.functions[order](x).numpy(), label=scalar.spec, linewidth=1.8)
        axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
        axes.axvline(0, color="0.8", linewidth=0.8, zorder=0)
        axes.set_title(TITLES[order])
        axes.set_xlabel("x")
        axes.spines[["top", "right"]].set_visible(False)
    lines = places[-1].get_lines()[: len(scalars)]  # matplotlib itself leaves out labels that begin with "_"
    figure.legend(lines, [scalar.spec for scalar in scalars], loc="outside lower center", ncols=5, frameon=False)
    return figure
