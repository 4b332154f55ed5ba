"""``lit-gelu activations``: list the registered activations, describe, compare or plot them."""

import json as json_format
import sys
from collections.abc import Sequence
from dataclasses import is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from rich.table import Table
from torch import Tensor

from lit_gelu.activations import ActivationComparison, ActivationInfo, UnknownActivationError, registry
from lit_gelu.activations import compare as compare_activations
from lit_gelu.activations import plot as plot_activations
from lit_gelu.activations.analysis.drawing import TITLES, panels
from lit_gelu.activations.functional import derivative
from lit_gelu.activations.numerics.sampling import both_sides
from lit_gelu.cli.terminal import console_for_output
from lit_gelu.errors import ArgumentError
from lit_gelu.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def activations(
    *names: str, plot: str | None = None, interval: Sequence[float] = (-4.0, 4.0), json: bool = False
) -> int:
    """List, describe, compare or plot activations. Without a sub-command, one NAME is shown and several are listed.

    in a shell:
      lit-gelu activations                                   all of them
      lit-gelu activations "*elu"                            those whose name matches
      lit-gelu activations "swish(beta=1.5)"                 everything that is known of one
      lit-gelu activations gelu silu relu --plot family.png  draw f, f' and f'' of three
      lit-gelu activations gelu --json                       plain data on standard output

    Args:
        *names: patterns over names, or specs; all by default
        plot: draw f, f' and f'' into a file (.png, .svg or .pdf)
        interval: of the plot, from and to
        json: print plain data
    """
    specs = selected(names or ["*"])
    if plot is not None:
        return _draw(plot_activations(*specs, interval=_pair(interval)), plot)
    return show(*specs, json=json) if len(specs) == 1 else overview(*specs, json=json)


def overview(*names: str, json: bool = False) -> int:
    """A table of the activations whose names match.

    in a shell:
      lit-gelu activations list
      lit-gelu activations list "*elu" "hard_*"
      lit-gelu activations list --json

    Args:
        *names: patterns over names, or specs; all by default
        json: print plain data
    """
    specs = selected(names or ["*"])
    infos = [registry.info(spec) for spec in specs]
    if json:
        return _print_json([as_plain_data(info) for info in infos])
    table = Table(title=f"{len(infos)} activations", title_justify="left")
    for column in ("activation", "f(x)", "derivatives", "monotone", "convex", "minimum at", "minimum", "max |f'|"):
        table.add_column(column, overflow="fold")
    for name, info in zip(specs, infos, strict=True):
        at, low = info.minimum or (None, None)
        facts = (_smoothness(info), _yes(info.monotone), _yes(info.convex), *map(_number, (at, low, info.lipschitz)))
        spec = str(info.spec)
        table.add_row(name if name == spec else f"{name}\n= {spec}", info.formula, *facts)
    console_for_output().print(table)
    return 0


def show(*names: str, json: bool = False) -> int:
    """Everything that is known of each activation.

    in a shell:
      lit-gelu activations show gelu
      lit-gelu activations show "swish(beta=1.5)" hard_swish
      lit-gelu activations show "gelu*" --json

    Args:
        *names: specs, or patterns over names
        json: print plain data
    """
    infos = [registry.info(spec) for spec in selected(_some(names))]
    if json:
        return _print_json([as_plain_data(info) for info in infos])
    console_for_output().print(*map(_details, infos))
    return 0


def compare(
    a: str, b: str, *, interval: Sequence[float] = (-12.0, 12.0), plot: str | None = None, json: bool = False
) -> int:
    """How far two activations lie apart in f, f' and f'', and where.

    in a shell:
      lit-gelu activations compare gelu gelu_tanh
      lit-gelu activations compare silu hard_swish --interval -6 6 --plot difference.png
      lit-gelu activations compare gelu "swish(beta=1.702)" --json

    Args:
        a: a spec
        b: another
        interval: where to compare, from and to
        plot: draw the differences into a file, too (.png, .svg or .pdf)
        json: print plain data
    """
    comparison = compare_activations(a, b, _pair(interval))
    rows = {"f": comparison.value, "f'": comparison.slope, "f''": comparison.curvature}
    if plot is not None:
        _draw(_differences(comparison), plot)
    if json:
        return _print_json(comparison.to_dict())
    low, high = comparison.interval
    table = Table(title=f"{comparison.a} and {comparison.b} on [{low:g}, {high:g}]", title_justify="left")
    for column in ("of", "largest difference", "at"):
        table.add_column(column, overflow="fold")
    for name, row in rows.items():
        places = [f"{x:.10g}" for x in row.places] + [f"all of [{a:.10g}, {b:.10g}]" for a, b in row.stretches]
        table.add_row(name, f"{row.largest:.15g}", ", ".join(places))
    console_for_output().print(table)
    return 0


def plot(
    *names: str, output: str, interval: Sequence[float] = (-4.0, 4.0), derivatives: Sequence[int] = (0, 1, 2)
) -> int:
    """Draw f, f' and f'' of some activations side by side.

    in a shell:
      lit-gelu activations plot gelu silu relu --output family.png
      lit-gelu activations plot "gelu*" -o gelu.svg --interval -3 3
      lit-gelu activations plot gelu "swish(beta=1.5)" -o slopes.pdf --derivatives 1

    Args:
        *names: specs, or patterns over names; at most ten activations
        output: the plot (.png, .svg or .pdf)
        interval: where to draw, from and to
        derivatives: which to draw; 0 is f itself
    """
    specs = selected(_some(names))
    return _draw(plot_activations(*specs, interval=_pair(interval), derivatives=list(derivatives)), output)


def selected(names: Sequence[str]) -> list[str]:
    """Return the specs that names and patterns stand for."""
    specs: dict[str, None] = {}
    for name in names:
        if "(" in name or not set(name) & set("*?["):
            registry.resolve(name)  # raises, with near names and the list, if there is no such activation
            specs[name] = None
            continue
        matching = registry.list_activations(name)
        if not matching:
            raise UnknownActivationError(
                f"No activation matches {name!r}. Registered: {', '.join(registry.list_activations())}."
            )
        specs.update(dict.fromkeys(matching))
    return list(specs)


def _some(names: Sequence[str]) -> Sequence[str]:
    if not names:
        raise ArgumentError('No activation was named. Give specs, or patterns over names: gelu "hard_*".')
    return names


def _pair(interval: Sequence[float]) -> tuple[float, float]:
    if len(interval) != 2:
        raise ArgumentError(f"--interval takes two numbers, from and to, and {len(interval)} were given.")
    return interval[0], interval[1]


def as_plain_data(info: ActivationInfo) -> dict[str, Any]:
    """Return what is known of an activation as plain data for JSON."""
    return {"spec": str(info.spec), **{key: _plain(value) for key, value in vars(info).items() if key != "spec"}}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {key: _plain(element) for key, element in vars(value).items()}
    if isinstance(value, tuple):
        return [_plain(element) for element in value]
    if isinstance(value, float) and value in {float("inf"), float("-inf")}:
        return str(value)
    return value


def _print_json(plain: Any) -> int:
    sys.stdout.write(json_format.dumps(plain, indent=2) + "\n")
    return 0


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.7g}"


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"


def _smoothness(info: ActivationInfo) -> str:
    return "all" if info.smoothness == float("inf") else _number(info.smoothness)


def _details(info: ActivationInfo) -> Table:
    """Return a table of everything that is known of an activation."""

    def both(ends: tuple[Any, Any] | None, text: Any = str) -> str:
        return "-" if ends is None else f"{text(ends[0])} (left), {text(ends[1])} (right)"

    def line(asymptote: tuple[float, float] | None) -> str:
        return "-" if asymptote is None else f"{asymptote[0]:.10g} x {asymptote[1]:+.10g}"

    gains = info.gains
    rows = {
        "f(x)": info.formula or "-",
        "reference": info.reference or "-",
        "other names": ", ".join(info.aliases) or "-",
        "registered by": info.registered_by,
        "continuous derivatives": _smoothness(info),
        "asymptotes": both(info.asymptotes),
        "straight lines approached": both((info.left_asymptote, info.right_asymptote), line),
        "range": "-" if info.range is None else f"{_number(info.range[0])} to {_number(info.range[1])}",
        "monotone": _yes(info.monotone),
        "convex": _yes(info.convex),
        "largest |f'|": _number(info.lipschitz),
        "f'(0)": _number(info.derivative_at_zero),
        "minimum": "-" if info.minimum is None else f"{info.minimum[1]:.15g} at {info.minimum[0]:.15g}",
        "inflections": ", ".join(f"{x:.15g}" for x in info.inflections) or "-",
        "kinks": ", ".join(f"f' jumps by {jump:.7g} at {x:.7g}" for x, jump in info.kinks) or "-",
        "gains at N(0, 1)": "-" if gains is None else ", ".join(f"{k} {v:.10g}" for k, v in vars(gains).items()),
        "learned parameters": _yes(info.learnable),
        "random in training": _yes(info.stochastic),
        "elementwise": _yes(info.elementwise),
    }
    table = Table(title=str(info.spec), title_justify="left", show_header=False)
    for row in rows.items():
        table.add_row(*row)
    return table


def _differences(comparison: ActivationComparison) -> "Figure":
    """Draw the differences of two activations, and mark where they are largest."""

    def difference(x: Tensor, order: int) -> Tensor:
        return (derivative(comparison.a, x, order) - derivative(comparison.b, x, order)).detach()

    functions = [partial(difference, order=order) for order in (0, 1, 2)]
    titles = [f"difference of {title}" for title in TITLES]
    figure = panels([(f"{comparison.a} - {comparison.b}", functions)], comparison.interval, (0, 1, 2), titles)
    rows = (comparison.value, comparison.slope, comparison.curvature)
    for order, (axes, row) in enumerate(zip(figure.axes, rows, strict=True)):
        for place in row.places:
            sides = difference(torch.tensor(both_sides([place]), dtype=torch.float64), order)
            axes.plot([place], [sides[sides.abs().argmax()].item()], "o", markersize=4, color="0.3")
        axes.set_title(f"{axes.get_title()}: at most {row.largest:.4g}")
    return figure


def _draw(figure: "Figure", path: str) -> int:
    """Write a figure, whole or not at all."""
    with write_atomically(path) as temporary:
        try:
            figure.savefig(temporary, dpi=150)
        except ValueError as error:
            raise ArgumentError(f"Cannot write {path!r}: {error}. Use .png, .svg or .pdf.") from error
    sys.stderr.write(f"wrote {path}\n")
    return 0
