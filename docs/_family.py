"""The tables of all registered activations."""

import functools

from _text import number, several, table

from lit_gelu.activations import ActivationInfo, ActivationRegistry


@functools.cache
def infos() -> tuple[ActivationInfo, ...]:
    """Return what is known of every activation of this package, each canonical spec once, sorted."""
    registry = ActivationRegistry()  # without plugins of the machine that writes the page
    specs = {str(registry.resolve(name)) for name in registry.list_activations()}
    return tuple(registry.info(spec) for spec in sorted(specs))


def _names() -> list[list[str]]:
    return [
        [
            f"`{info.spec}`",
            f"{info.formula}" + (" (two halves of the input)" if info.halves else ""),
            ", ".join(f"`{alias}`" for alias in info.aliases),
        ]
        for info in infos()
    ]


def _points() -> list[list[str]]:
    same: dict[tuple[str, ...], list[str]] = {}  # activations with the same points stand in one row
    for info in infos():
        if info.elementwise and not info.halves:
            same.setdefault(_points_of(info), []).append(f"`{info.spec}`")
    return [[", ".join(specs), *cells] for cells, specs in same.items()]


def _points_of(info: ActivationInfo) -> tuple[str, ...]:
    return (
        f"{number(info.minimum[1])} at {number(info.minimum[0])}" if info.minimum else "",
        several(info.inflections),
        number(info.lipschitz or 0.0),
        number(info.derivative_at_zero or 0.0),
        f"{number(info.range[0], 6)} to {number(info.range[1], 6)}" if info.range else "",
        ", ".join(f"{number(jump, 6)} at {number(x, 6)}" for x, jump in info.kinks),
        "all" if info.smoothness == float("inf") else f"{info.smoothness:g}",
        ("yes" if info.monotone else "no") + (", convex" if info.convex else ""),
    )


def family() -> dict[str, str]:
    """Return the tables of names and of points.

    Returns:
        Texts by their names in the template.
    """
    points_head = ["activation", "lowest point", "inflections", "sup abs f'", "f'(0)", "range", "jumps of f'"]
    return {
        "number_of_activations": str(len(infos())),
        "number_of_names": str(len(ActivationRegistry().list_activations())),
        "family_table": table(["activation", "formula", "other names"], _names()),
        "points_table": table([*points_head, "continuous derivatives", "monotone"], _points()),
    }
