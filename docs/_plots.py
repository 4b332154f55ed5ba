"""The plots of ``docs/activations.md``."""

from collections.abc import Sequence
from pathlib import Path

import torch
from _claims import INVERSE_PI, monte_carlo, sigma_distances
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lit_gelu.activations import functional
from lit_gelu.files import write_atomically

GROUPS = {
    "gelu": ("gelu", "gelu_sigmoid", "silu", "mish", "hard_swish", "relu"),
    "gaussian": ("relu", "gaussian_gelu(sigma=0.25)", "gelu", "gaussian_gelu(sigma=2.0)", "gaussian_gelu(mu=1.0)"),
    "distributions": ("gelu", "logistic", "laplace_linear", "cauchy_linear"),
    "exponential": ("elu", "elu(alpha=0.3)", "selu", "celu(alpha=2.0)", "softplus"),
    "others": ("relu2", "xielu", "hard_mish", "clipped_gelu(min=-0.1, max=2.0)", "mega_laplace", "sqrt_softplus"),
}
ORDERS = ("f", "f'", "f''")


def draw_all(folder: Path) -> None:
    """Draw every plot of the page.

    Args:
        folder: Where the PNG files go.
    """
    for name, specs in GROUPS.items():
        _save(_family(specs), folder / f"{name}.png")
    _save(_monte_carlo(), folder / "monte_carlo.png")
    _save(_sigma(), folder / "sigma.png")
    _save(_cauchy(), folder / "cauchy.png")


def _save(figure: Figure, path: Path) -> None:
    """Write a figure without the date and the version that matplotlib adds."""
    with write_atomically(path) as temporary:
        figure.savefig(temporary, dpi=90, metadata={"Software": None})


def _grid(low: float, high: float) -> torch.Tensor:
    return torch.linspace(low, high, 1201, dtype=torch.float64)


def _curve(axes: Axes, spec: str, x: torch.Tensor, order: int = 0, label: str | None = None) -> None:
    y = functional.derivative(spec, x, order).detach()
    axes.plot(x.numpy(), y.numpy(), label=label or spec, linewidth=1.5)


def _family(specs: Sequence[str]) -> Figure:
    """Draw f, f' and f'' of some activations side by side."""
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    x = _grid(-5, 4)
    for order, axes in enumerate(figure.subplots(1, 3)):
        for spec in specs:
            _curve(axes, spec, x, order)
        axes.set_title(ORDERS[order])
        axes.set_xlabel("x")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylim(-2, 4)
    figure.axes[1].set_ylim(-0.8, 2.2)
    figure.axes[2].set_ylim(-0.8, 2.2)
    figure.axes[0].legend(fontsize=8)
    return figure


def _monte_carlo() -> Figure:
    """Draw means of the 0-I map over GELU, and their differences in standard errors."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    values, differences = figure.subplots(1, 2)
    x, mean, error, exact = (list(column) for column in zip(*monte_carlo(), strict=True))
    _curve(values, "gelu", _grid(-3.2, 3.2), label="x Phi(x)")
    values.errorbar(x, mean, yerr=error, fmt="o", label="mean of draws of the 0-I map")
    values.legend()
    scaled = [(m - e) / s for m, e, s in zip(mean, exact, error, strict=True)]
    differences.errorbar(x, scaled, yerr=1.0, fmt="o")
    differences.axhline(0.0, color="grey", linewidth=1)
    differences.set_title("difference in standard errors")
    for axes in (values, differences):
        axes.set_xlabel("x")
        axes.grid(alpha=0.3)
    return figure


def _sigma() -> Figure:
    """Draw the distance of GELU(0, sigma) to ReLU over sigma."""
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.subplots()
    rows = sigma_distances()
    axes.loglog([row[0] for row in rows], [row[1] for row in rows], "o-")
    axes.set_xlabel("sigma")
    axes.set_title("sup |x Phi(x / sigma) - ReLU(x)|")
    axes.grid(alpha=0.3)
    return figure


def _cauchy() -> Figure:
    """Draw ELU(1/pi), the Cauchy unit and their difference."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    values, differences = figure.subplots(1, 2)
    x, elu = _grid(-10, 10), f"elu(alpha={INVERSE_PI!r})"
    _curve(values, elu, x, label="ELU(1/pi)")
    _curve(values, "cauchy_linear", x, label="x P(C <= x)")
    values.legend()
    values.set_ylim(-1, 4)
    values.set_xlim(-10, 4)
    difference = functional.derivative(elu, x, 0) - functional.derivative("cauchy_linear", x, 0)
    differences.plot(x.numpy(), difference.numpy())
    differences.axhline(INVERSE_PI, color="grey", linewidth=1, linestyle="--", label="1/pi")
    differences.legend()
    differences.set_title("difference")
    for axes in (values, differences):
        axes.set_xlabel("x")
        axes.grid(alpha=0.3)
    return figure
