"""Plots of activations, of their derivatives, and of the differences of two."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lit_gelu.activations import ActivationComparison, ActivationInfo
from lit_gelu.activations.analysis.sampling import both_sides
from lit_gelu.activations.functional import derivative
from lit_gelu.errors import LitGeluError
from lit_gelu.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 1601
_MOST = 10  # lines that can be told apart
_TITLES = ("f(x)", "f'(x)", "f''(x)")


class PlotError(LitGeluError, ValueError):
    """A plot that cannot be drawn as asked."""


def plot(
    infos: Sequence[ActivationInfo],
    path: str,
    interval: tuple[float, float] = (-4.0, 4.0),
    derivatives: Sequence[int] = (0, 1, 2),
) -> None:
    """Draw f, f' and f'' of some activations side by side.

    Args:
        infos: The activations; at most ten, so that their lines can be told apart.
        path: The file to write; its suffix is the format.
        interval: From where to where.
        derivatives: Which to draw: 0 is f itself.

    Raises:
        PlotError: If the interval is empty, there are too many activations, one is not elementwise, there is no such
            derivative, or the format is not known.
        UnwritablePathError: If the file cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> from lit_gelu import activations
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "gelu.png"
        >>> plot([activations.info("gelu"), activations.info("relu")], str(path))
        >>> path.stat().st_size > 10_000
        True
    """
    low, high = interval
    if not low < high or len(infos) > _MOST:
        raise PlotError(
            f"Cannot plot {len(infos)} activations from {low} to {high}. Give at most {_MOST}, and an interval from "
            "left to right."
        )
    orders = sorted(set(derivatives))
    if not orders or not set(orders) <= {0, 1, 2}:
        raise PlotError(f"Cannot plot derivatives {list(derivatives)}. Give some of 0 (f itself), 1 and 2.")
    mixing = [str(info.spec) for info in infos if not info.elementwise]
    if mixing:
        raise PlotError(f"Cannot plot {', '.join(mixing)}: not elementwise, so no function of one number.")
    curves = {str(info.spec): _curve(info) for info in infos}
    _save(_panels(curves, (low, high), orders, [_TITLES[order] for order in orders]), path)


def plot_comparison(comparison: ActivationComparison, path: str) -> None:
    """Draw the differences of two activations, and mark where they are largest.

    Args:
        comparison: The two, their interval and what was found.
        path: The file to write; its suffix is the format.

    Raises:
        PlotError: If the format is not known.
        UnwritablePathError: If the file cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> from lit_gelu import activations
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "difference.svg"
        >>> plot_comparison(activations.compare("gelu", "gelu_tanh", (-5, 5)), str(path))
        >>> path.stat().st_size > 10_000
        True
    """

    def difference(x: Tensor, order: int) -> Tensor:
        return derivative(comparison.a, x, order) - derivative(comparison.b, x, order)

    name = f"{comparison.a} - {comparison.b}"
    titles = [f"difference of {title}" for title in _TITLES]
    figure = _panels({name: difference}, comparison.interval, (0, 1, 2), titles)
    rows = (comparison.value, comparison.slope, comparison.curvature)
    for order, (axes, row) in enumerate(zip(figure.axes, rows, strict=True)):
        for place in row.places:
            sides = difference(torch.tensor(both_sides([place]), dtype=torch.float64), order).detach()
            axes.plot([place], [sides[sides.abs().argmax()].item()], "o", markersize=4, color="0.3")
        axes.set_title(f"{axes.get_title()}: at most {row.largest:.4g}")
    _save(figure, path)


def _curve(info: ActivationInfo) -> Callable[[Tensor, int], Tensor]:
    return lambda x, order: derivative(info.spec, x, order)


def _panels(
    curves: dict[str, Callable[[Tensor, int], Tensor]],
    interval: tuple[float, float],
    orders: Sequence[int],
    titles: Sequence[str],
) -> "Figure":
    """Return a figure with a panel for each order and a line for each curve."""
    from matplotlib.figure import Figure  # not needed for the tables, and slow to load

    figure = Figure(figsize=(13 / 3 * max(len(orders), 1.5), 4), layout="constrained")
    x = torch.linspace(*interval, _POINTS, dtype=torch.float64)
    panels = figure.subplots(1, len(orders), squeeze=False)[0]
    for axes, order, title in zip(panels, orders, titles, strict=True):
        for name, curve in curves.items():
            axes.plot(x.numpy(), curve(x, order).detach().numpy(), label=name, linewidth=1.8)
        axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
        axes.axvline(0, color="0.8", linewidth=0.8, zorder=0)
        axes.set_title(title)
        axes.set_xlabel("x")
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*panels[-1].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    return figure


def _save(figure: "Figure", path: str) -> None:
    """Write a figure, whole or not at all.

    Raises:
        PlotError: If the format is not known.
    """
    with write_atomically(path) as temporary:
        try:
            figure.savefig(temporary, dpi=150)
        except ValueError as error:
            raise PlotError(f"Cannot write {path!r}: {error}. Use .png, .svg or .pdf.") from error
