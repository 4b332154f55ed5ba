"""What the sub-commands of ``lit-gelu activations`` print."""

from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any

from rich.table import Table

from lit_gelu import activations
from lit_gelu.activations import ActivationGains, ActivationInfo, UnknownActivationError


def selected(names: Sequence[str]) -> list[str]:
    """Return the specs that names and patterns stand for."""
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
    """Return what is known of an activation as plain data for JSON."""
    return {"spec": str(info.spec), **{key: _plain(value) for key, value in vars(info).items() if key != "spec"}}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {key: _plain(element) for key, element in vars(value).items()}
    if isinstance(value, tuple):
        return [_plain(element) for element in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    return value


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.7g}"


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"


def overview(names: Sequence[str], infos: Sequence[ActivationInfo]) -> Table:
    """Return a table with one row for each activation."""
    table = Table(title=f"{len(infos)} activations", title_justify="left")
    for column in ("activation", "f(x)", "derivatives", "monotone", "convex", "minimum at", "minimum", "max |f'|"):
        table.add_column(column, overflow="fold")
    for name, info in zip(names, infos, strict=True):
        at, low = info.minimum or (None, None)
        smoothness = "all" if info.smoothness == float("inf") else _number(info.smoothness)
        facts = (smoothness, _yes(info.monotone), _yes(info.convex), _number(at), _number(low), _number(info.lipschitz))
        spec = str(info.spec)
        table.add_row(name if name == spec else f"{name}\n= {spec}", info.formula, *facts)
    return table


def details(info: ActivationInfo) -> Table:
    """Return a table of everything that is known of an activation."""
    table = Table(title=str(info.spec), title_justify="left", show_header=False)
    rows = {
        "f(x)": info.formula or "-",
        "reference": info.reference or "-",
        "other names": ", ".join(info.aliases) or "-",
        "registered by": info.registered_by,
        "continuous derivatives": "all" if info.smoothness == float("inf") else _number(info.smoothness),
        "asymptotes": "-" if info.asymptotes is None else f"{info.asymptotes[0]} (left), {info.asymptotes[1]} (right)",
        "straight lines approached": f"{_line(info.left_asymptote)} (left), {_line(info.right_asymptote)} (right)",
        "range": "-" if info.range is None else f"{_number(info.range[0])} to {_number(info.range[1])}",
        "monotone": _yes(info.monotone),
        "convex": _yes(info.convex),
        "largest |f'|": _number(info.lipschitz),
        "f'(0)": _number(info.derivative_at_zero),
        "minimum": "-" if info.minimum is None else f"{info.minimum[1]:.15g} at {info.minimum[0]:.15g}",
        "inflections": ", ".join(f"{x:.15g}" for x in info.inflections) or "-",
        "kinks": ", ".join(f"f' jumps by {jump:.7g} at {x:.7g}" for x, jump in info.kinks) or "-",
        "gains at N(0, 1)": _gains(info.gains),
        "learned parameters": _yes(info.learnable),
        "random in training": _yes(info.stochastic),
        "elementwise": _yes(info.elementwise),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _line(asymptote: tuple[float, float] | None) -> str:
    return "-" if asymptote is None else f"{asymptote[0]:.10g} x {asymptote[1]:+.10g}"


def _gains(gains: ActivationGains | None) -> str:
    if gains is None:
        return "-"
    return f"forward {gains.forward:.10g}, variance {gains.variance:.10g}, backward {gains.backward:.10g}"
