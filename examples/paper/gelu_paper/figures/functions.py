"""Figure 1: the GELU, the ReLU and the ELU."""

import torch

from lit_gelu.activations.functional import derivative
from gelu_paper.figures.drawing import DARK_WIDTH, Drawing, colour, panels, style

NUMBER = 1
# From arm to spec, name and dashes: right of zero ReLU and ELU are one line, so one of them is dashed.
_FUNCTIONS = {
    "gelu": ("gelu", "GELU ($\\mu = 0$, $\\sigma = 1$)", "-"),
    "elu": ("elu", "ELU ($\\alpha = 1$)", "-"),
    "relu": ("relu", "ReLU", (0, (5, 3))),
}
_INTERVAL = (-4.0, 3.0)
_POINTS = 1401


def draw_functions() -> Drawing:
    """Draw figure 1: the GELU with mean 0 and deviation 1, the ReLU and the ELU with alpha 1."""
    x = torch.linspace(*_INTERVAL, _POINTS, dtype=torch.float64)
    with style():
        figure, (axes,) = panels(NUMBER, "The GELU, the ReLU and the ELU", [], legend_below=False)
        axes.axhline(0, color="#BBBBBB", linewidth=0.8, zorder=1)
        axes.axvline(0, color="#BBBBBB", linewidth=0.8, zorder=1)
        for arm, (spec, name, dashes) in _FUNCTIONS.items():
            y = derivative(spec, x, 0).numpy()
            axes.plot(x.numpy(), y, color=colour(arm), linewidth=DARK_WIDTH, linestyle=dashes, label=name)
        axes.set_xlim(*_INTERVAL)
        axes.set_ylim(-1.2, 3.0)
        axes.set_xlabel("x")
        axes.set_ylabel("f(x)")
        axes.legend(loc="upper left")
    return Drawing(NUMBER, figure)
