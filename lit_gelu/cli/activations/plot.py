"""``lit-gelu activations plot``: draw f, f' and f'' of some activations side by side."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import jsonargparse
import torch
from torch import Tensor

from lit_gelu import activations
from lit_gelu.activations import ActivationInfo
from lit_gelu.activations.functional import derivative
from lit_gelu.cli.activations.tables import selected
from lit_gelu.cli.options import add_import, command_parser
from lit_gelu.errors import LitGeluError
from lit_gelu.extras import need
from lit_gelu.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLES = """\
examples:
  lit-gelu activations plot gelu silu relu --output family.png
  lit-gelu activations plot "gelu*" -o gelu.svg --interval -3 3
  lit-gelu activations plot gelu "swish(beta=1.5)" -o slopes.pdf --derivatives 1
"""
_POINTS = 1601
_MOST = 10  # lines that can be told apart
TITLES = ("f(x)", "f'(x)", "f''(x)")


class PlotError(LitGeluError, ValueError):
    """A plot that cannot be drawn as asked."""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser."""
    parser = command_parser("activations plot", EXAMPLES)
    add_import(parser)
    parser.add_argument("names", nargs="+", help="specs, or patterns over names; at most ten activations")
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the plot (.png, .svg or .pdf)")
    parser.add_argument(
        "--interval", nargs=2, type=float, metavar=("FROM", "TO"), default=[-4.0, 4.0], help="where to draw"
    )
    parser.add_argument(
        "--derivatives", nargs="+", type=int, default=[0, 1, 2], help="which to draw; 0 is f itself, all by default"
    )
    return parser


def run(arguments: jsonargparse.Namespace) -> int:
    """Run ``lit-gelu activations plot``."""
    infos = [activations.info(spec) for spec in selected(arguments.names)]
    draw(infos, arguments.output, tuple(arguments.interval), arguments.derivatives)
    sys.stderr.write(f"wrote {arguments.output}\n")
    return 0


def draw(
    infos: Sequence[ActivationInfo],
    path: str,
    interval: tuple[float, float] = (-4.0, 4.0),
    derivatives: Sequence[int] = (0, 1, 2),
) -> None:
    """Draw f, f' and f'' of some activations side by side."""
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
    curves = {str(info.spec): partial(derivative, info.spec) for info in infos}
    save(panels(curves, (low, high), orders, [TITLES[order] for order in orders]), path)


def panels(
    curves: Mapping[str, Callable[[Tensor, int], Tensor]],
    interval: tuple[float, float],
    orders: Sequence[int],
    titles: Sequence[str],
) -> "Figure":
    """Return a figure with a panel for each order and a line for each curve."""
    need("matplotlib", extra="plots", what="lit-gelu activations plot")
    from matplotlib.figure import Figure  # not needed for the tables, and slow to load

    figure = Figure(figsize=(13 / 3 * max(len(orders), 1.5), 4), layout="constrained")
    x = torch.linspace(*interval, _POINTS, dtype=torch.float64)
    places = figure.subplots(1, len(orders), squeeze=False)[0]
    for axes, order, title in zip(places, orders, titles, strict=True):
        for name, curve in curves.items():
            axes.plot(x.numpy(), curve(x, order).detach().numpy(), label=name, linewidth=1.8)
        axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
        axes.axvline(0, color="0.8", linewidth=0.8, zorder=0)
        axes.set_title(title)
        axes.set_xlabel("x")
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*places[-1].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    return figure


def save(figure: "Figure", path: str) -> None:
    """Write a figure, whole or not at all."""
    with write_atomically(path) as temporary:
        try:
            figure.savefig(temporary, dpi=150)
        except ValueError as error:
            raise PlotError(f"Cannot write {path!r}: {error}. Use .png, .svg or .pdf.") from error
