"""The plots of the gallery as SVG: f, f' and f'' each on its own, and a small one for the index; light and dark."""

from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lit_gelu import activations
from lit_gelu.activations import ActivationInfo, functional
from website.places import GALLERY

ORDERS = {"f": "f", "first": "f'", "second": "f''"}
INK, GRID, CURVE, JUMP = "#303036", "#d5d5dc", "#3f51b5", "#b3541e"
DARK = {INK: "#dcdce4", GRID: "#44485a", CURVE: "#98a6f0", JUMP: "#f0a070"}
STYLE = {
    "svg.fonttype": "none",  # texts stay texts, in a font of the reader's
    "svg.hashsalt": "lit-gelu",  # the same names in every build
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
}


@dataclass(frozen=True)
class PlotFiles:
    """The plots of one activation.

    Args:
        name: Of the activation.
        texts: What each plot shows, by the end of its file's name.
    """

    name: str
    texts: dict[str, str]

    def _image(self, kind: str, back: str) -> str:
        place = f"{back}{GALLERY}/plots/{self.name}-{kind}"
        return f"![{self.texts[kind]}]({place}.svg#only-light)![{self.texts[kind]}]({place}-dark.svg#only-dark)"

    def as_markdown(self, back: str) -> str:
        """Return the large plots side by side."""
        images = "\n".join(self._image(kind, back) for kind in self.texts if kind != "small")
        return f'<div class="plots" markdown>\n{images}\n</div>\n'

    def small_as_markdown(self, back: str) -> str:
        """Return the small plot."""
        return self._image("small", back)


def dark(svg: str) -> str:
    """Return a plot in the colours of the dark scheme."""
    for light, other in DARK.items():
        svg = svg.replace(light, other)
    return svg


def interval(info: ActivationInfo) -> tuple[float, float]:
    """Return where an activation is drawn: around 0, and all its special points with room beside them.

    Example:
        >>> interval(activations.info("relu6"))
        (-5.0, 8.0)
    """
    points = [x for x, _ in info.kinks] + list(info.inflections) + ([info.minimum[0]] if info.minimum else [])
    return min(-5.0, *(x - 2.0 for x in (0.0, *points))), max(5.0, *(x + 2.0 for x in (0.0, *points)))


def draw(name: str, info: ActivationInfo, folder: Path) -> PlotFiles:
    """Draw the plots of an activation.

    Args:
        name: The name under which the registry builds it.
        info: What is known of it.
        folder: The site's source.

    Returns:
        What was drawn.
    """
    files = PlotFiles(name, {"small": f"{name}, small plot"})
    with mpl.rc_context(STYLE):
        if info.halves:
            files.texts["output"] = f"{name} over both halves of its input"
            _save(_of_halves(name, (4.6, 3.4)), folder, name, "output")
            _save(_of_halves(name, (2.2, 1.5)), folder, name, "small")
            return files
        for order, (kind, title) in enumerate(ORDERS.items()):
            files.texts[kind] = f"{title} of {name}"
            _save(_of_order(name, info, order), folder, name, kind)
        _save(_small(name, info), folder, name, "small")
    return files


def _save(figure: Figure, folder: Path, name: str, kind: str) -> None:
    """Write a figure in the colours of both schemes."""
    text = StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    (folder / GALLERY / "plots").mkdir(parents=True, exist_ok=True)
    for end, svg in (("", text.getvalue()), ("-dark", dark(text.getvalue()))):
        (folder / GALLERY / "plots" / f"{name}-{kind}{end}.svg").write_text(svg, encoding="utf-8")


def _values(name: str, info: ActivationInfo, order: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points and values, with a gap wherever the curve jumps."""
    x = torch.linspace(*interval(info), 501, dtype=torch.float64)
    step = (x[1] - x[0]).item()
    gaps = torch.tensor([point for point, _ in info.kinks] if order else [], dtype=torch.float64)
    x = torch.cat([x, gaps - 1e-3 * step, gaps, gaps + 1e-3 * step]).sort().values
    y = functional.derivative(name, x, order).detach()
    for gap in gaps:
        y = torch.where(x == gap, torch.nan, y)
    return x, y


def _of_order(name: str, info: ActivationInfo, order: int) -> Figure:
    """Draw f or one of its derivatives."""
    figure = Figure(figsize=(4.2, 3.1), layout="constrained")
    axes = figure.subplots()
    x, y = _values(name, info, order)
    axes.plot(x.numpy(), y.numpy(), color=CURVE, linewidth=2)
    axes.set_title(list(ORDERS.values())[order], color=INK)
    axes.set_xlabel("x")
    axes.grid(linewidth=0.6)
    axes.axhline(0, color=INK, linewidth=0.7)
    axes.axvline(0, color=INK, linewidth=0.7)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0)
    if order == 2:
        _jumps(axes, info)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -0.1), max(high, 0.1))
    return figure


def _jumps(axes: Axes, info: ActivationInfo) -> None:
    """Draw the part of f'' that sits in single points: an arrow as long as f' jumps."""
    for x, jump in info.kinks:
        axes.annotate("", (x, jump), (x, 0), arrowprops={"arrowstyle": "-|>", "color": JUMP, "linewidth": 2})
        axes.plot([x], [jump], alpha=0)  # the axes make room for what is plotted, not for arrows


def _small(name: str, info: ActivationInfo) -> Figure:
    """Draw f, and f' thinly."""
    figure = Figure(figsize=(2.2, 1.5), layout="constrained")
    axes = figure.subplots()
    axes.set_axis_off()
    axes.axhline(0, color=GRID, linewidth=1)
    axes.axvline(0, color=GRID, linewidth=1)
    for order, width, color in ((1, 1.0, JUMP), (0, 2.2, CURVE)):
        x, y = _values(name, info, order)
        axes.plot(x.numpy(), y.numpy(), color=color, linewidth=width)
    values = _values(name, info, 0)[1]
    axes.set_ylim(max(-3.0, min(-0.6, values.min().item() * 1.2)), min(5.0, max(1.3, values.max().item())))
    return figure


def _of_halves(name: str, size: tuple[float, float]) -> Figure:
    """Draw a gated function over both halves of its input, as lines of equal value."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    half = torch.linspace(-4, 4, 81, dtype=torch.float64)
    a, b = torch.meshgrid(half, half, indexing="xy")
    out = activations.create(name).double()(torch.stack([a, b], dim=-1)).squeeze(-1).detach()
    large = size[0] > 3
    drawn = axes.contour(a.numpy(), b.numpy(), out.numpy(), levels=13 if large else 9, cmap="coolwarm", linewidths=1.4)
    if large:
        axes.clabel(drawn, fontsize=8)
        axes.set_xlabel("first half")
        axes.set_ylabel("second half")
        axes.grid(linewidth=0.6)
    else:
        axes.set_axis_off()
    return figure
