"""``lit-gelu activations``: what is registered, what is known of it, and plots of f, f' and f''."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import jsonargparse
import torch
from rich.table import Table

from lit_gelu import activations
from lit_gelu.activations import ActivationInfo, UnknownActivationError
from lit_gelu.cli.terminal import ExamplesHelpFormatter, console_for_output
from lit_gelu.errors import LitGeluError
from lit_gelu.files import write_atomically

HELP = "list the registered activations, describe or plot them"
EXAMPLES = """\
examples:
  lit-gelu activations                                  all of them
  lit-gelu activations "*elu"                           those whose name matches
  lit-gelu activations "swish(beta=1.5)"                everything that is known of one
  lit-gelu activations gelu silu relu --plot family.png draw f, f' and f'' of three
  lit-gelu activations gelu --json                      plain data on standard output
"""
_PLOT_POINTS = 1601


class PlotError(LitGeluError, ValueError):
    """A plot that cannot be drawn as asked."""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser of ``lit-gelu activations``.

    Returns:
        The parser.
    """
    parser = jsonargparse.ArgumentParser(
        prog="lit-gelu activations",
        description="List, describe or plot activations.",
        epilog=EXAMPLES,
        formatter_class=ExamplesHelpFormatter,
    )
    parser.add_argument("names", nargs="*", default=["*"], help="patterns over names, or specs; all by default")
    parser.add_argument("--plot", metavar="FILE", default=None, help="draw f, f' and f'' (.png, .svg or .pdf)")
    parser.add_argument(
        "--interval", nargs=2, type=float, metavar=("FROM", "TO"), default=[-4.0, 4.0], help="of the plot"
    )
    parser.add_argument("--json", action="store_true", help="print plain data instead of a table")
    return parser


def run(arguments: jsonargparse.Namespace) -> int:
    """Run ``lit-gelu activations``.

    Args:
        arguments: What was parsed.

    Returns:
        The exit code.
    """
    infos = [activations.info(spec) for spec in selected(arguments.names)]
    if arguments.plot is not None:
        plot(infos, arguments.plot, tuple(arguments.interval))
        sys.stderr.write(f"wrote {arguments.plot}\n")
    elif arguments.json:
        sys.stdout.write(json.dumps([as_plain_data(info) for info in infos], indent=2) + "\n")
    else:
        console_for_output().print(_details(infos[0]) if len(infos) == 1 else _table(infos))
    return 0


def selected(names: Sequence[str]) -> list[str]:
    """Return the specs that names and patterns stand for.

    Args:
        names: Specs, and patterns over registered names.

    Returns:
        The specs, without repetition, in the order given.

    Raises:
        UnknownActivationError: If a name is not registered, or a pattern matches none.

    Example:
        >>> selected(["silu", "gelu_*"])
        ['silu', 'gelu_sigmoid', 'gelu_tanh']
    """
    specs: dict[str, None] = {}
    for name in names:
        if "(" in name or not set(name) & set("*?["):
            activations.resolve(name)  # raises, with near names and the list, if there is no such activation
            specs[name] = None
            continue
        matching = activations.list_activations(name)
        if not matching:
            raise UnknownActivationError(
                f"No activation matches {name!r}. Registered: {', '.join(activations.list_activations())}."
            )
        specs.update(dict.fromkeys(matching))
    return list(specs)


def as_plain_data(info: ActivationInfo) -> dict[str, Any]:
    """Return what is known of an activation as plain data for JSON.

    Args:
        info: What is known.

    Returns:
        The fields by name; infinities are texts, because JSON has none.

    Example:
        >>> as_plain_data(activations.info("relu"))["range"]
        [0.0, 'inf']
    """
    return {"spec": str(info.spec), **{key: _plain(value) for key, value in vars(info).items() if key != "spec"}}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(element) for element in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    return value


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.7g}"


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"


def _table(infos: Sequence[ActivationInfo]) -> Table:
    """One row an activation."""
    table = Table(title=f"{len(infos)} activations", title_justify="left")
    for column in ("activation", "f(x)", "derivatives", "monotone", "convex", "minimum at", "minimum", "max |f'|"):
        table.add_column(column, overflow="fold")
    for info in infos:
        at, low = info.minimum or (None, None)
        smoothness = "all" if info.smoothness == float("inf") else _number(info.smoothness)
        facts = (smoothness, _yes(info.monotone), _yes(info.convex), _number(at), _number(low), _number(info.lipschitz))
        table.add_row(str(info.spec), info.formula, *facts)
    return table


def _details(info: ActivationInfo) -> Table:
    """Everything that is known of one."""
    table = Table(title=str(info.spec), title_justify="left", show_header=False)
    rows = {
        "f(x)": info.formula or "-",
        "reference": info.reference or "-",
        "other names": ", ".join(info.aliases) or "-",
        "registered by": info.registered_by,
        "continuous derivatives": "all" if info.smoothness == float("inf") else _number(info.smoothness),
        "asymptotes": "-" if info.asymptotes is None else f"{info.asymptotes[0]} (left), {info.asymptotes[1]} (right)",
        "range": "-" if info.range is None else f"{_number(info.range[0])} to {_number(info.range[1])}",
        "monotone": _yes(info.monotone),
        "convex": _yes(info.convex),
        "largest |f'|": _number(info.lipschitz),
        "f'(0)": _number(info.derivative_at_zero),
        "minimum": "-" if info.minimum is None else f"{info.minimum[1]:.15g} at {info.minimum[0]:.15g}",
        "inflections": ", ".join(f"{x:.15g}" for x in info.inflections) or "-",
        "kinks": ", ".join(f"f' jumps by {jump:.7g} at {x:.7g}" for x, jump in info.kinks) or "-",
        "learned parameters": _yes(info.learnable),
        "random in training": _yes(info.stochastic),
        "elementwise": _yes(info.elementwise),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def plot(infos: Sequence[ActivationInfo], path: str, interval: tuple[float, float] = (-4.0, 4.0)) -> None:
    """Draw f, f' and f'' of some activations side by side.

    Args:
        infos: The activations; at most ten, so that their lines can be told apart.
        path: The file to write; its suffix is the format.
        interval: From where to where.

    Raises:
        PlotError: If the interval is empty, there are too many activations, or the format is not known.
        UnwritablePathError: If the file cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "gelu.png"
        >>> plot([activations.info("gelu"), activations.info("relu")], str(path))
        >>> path.stat().st_size > 10_000
        True
    """
    from matplotlib.figure import Figure  # not needed for the tables, and slow to load

    low, high = interval
    if not low < high or len(infos) > 10:
        raise PlotError(
            f"Cannot plot {len(infos)} activations from {low} to {high}. Give at most 10, and an interval from left to "
            "right."
        )
    figure = Figure(figsize=(13, 4), layout="constrained")
    x = torch.linspace(low, high, _PLOT_POINTS, dtype=torch.float64)
    for order, (axes, title) in enumerate(zip(figure.subplots(1, 3), ("f(x)", "f'(x)", "f''(x)"), strict=True)):
        for info in infos:
            y = activations.functional.derivative(info.spec, x, order).detach()
            axes.plot(x.numpy(), y.numpy(), label=str(info.spec), linewidth=1.8)
        axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
        axes.axvline(0, color="0.8", linewidth=0.8, zorder=0)
        axes.set_title(title)
        axes.set_xlabel("x")
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    with write_atomically(path) as temporary:
        try:
            figure.savefig(temporary, dpi=150)
        except ValueError as error:
            raise PlotError(f"Cannot write {path!r}: {error}. Use .png, .svg or .pdf.") from error
