"""The tables of all registered activations."""

import functools

import torch
from _text import number, several, table

from lit_gelu import activations
from lit_gelu.activations import ActivationInfo, ActivationRegistry, functional


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
            info.reference,
        ]
        for info in infos()
    ]


def _points() -> list[list[str]]:
    return [
        [
            f"`{info.spec}`",
            f"{number(info.minimum[1])} at {number(info.minimum[0])}" if info.minimum else "",
            several(info.inflections),
            number(info.lipschitz or 0.0),
            number(info.derivative_at_zero or 0.0),
            f"{number(info.range[0], 6)} to {number(info.range[1], 6)}" if info.range else "",
            ", ".join(f"{number(jump, 6)} at {number(x, 6)}" for x, jump in info.kinks),
            "all" if info.smoothness == float("inf") else f"{info.smoothness:g}",
            ("yes" if info.monotone else "no") + (", convex" if info.convex else ""),
        ]
        for info in infos()
        if info.elementwise and not info.halves
    ]


def _gains() -> list[list[str]]:
    return [
        [f"`{info.spec}`", *(number(value, 7) for value in (g.forward, g.variance, g.backward))]
        for info in infos()
        if (g := info.gains) is not None
    ]


def _sweep() -> list[list[str]]:
    """Return Swish over beta; the distances are maxima over a grid whose step costs less than the last digit shown."""
    rows = []
    grid = torch.linspace(-8, 8, 320_001, dtype=torch.float64)
    near = torch.linspace(-1, 1, 2_001, dtype=torch.float64)
    for beta in (0.1, 0.5, 1.0, 1.5, 1.702, 2.0, 10.0, 100.0):
        info = activations.info(f"swish(beta={beta})")
        scaled = grid / beta
        to_relu = (functional.swish(scaled, beta) - functional.relu(scaled)).abs().max().item()
        to_line = (functional.swish(near, beta) - 0.5 * near).abs().max().item()
        assert info.minimum is not None  # noqa: S101 - for the type checker: every Swish has one
        x, lowest = info.minimum
        row = [f"{beta:g}", number(x, 7), number(lowest, 7), several(info.inflections, 7)]
        rows.append([*row, number(to_relu, 7), number(to_line, 5)])
    return rows


def family() -> dict[str, str]:
    """Return the tables of names, of points, of gains and of Swish over beta.

    Returns:
        Texts by their names in the template.
    """
    points_head = ["activation", "lowest point", "inflections", "sup abs f'", "f'(0)", "range", "jumps of f'"]
    return {
        "number_of_activations": str(len(infos())),
        "family_table": table(["activation", "formula", "other names", "source"], _names()),
        "points_table": table([*points_head, "continuous derivatives", "monotone"], _points()),
        "gains_table": table(["activation", "forward", "variance", "backward"], _gains()),
        "beta_table": table(
            ["beta", "lowest at", "lowest value", "inflections", "sup distance to ReLU", "to x/2 on [-1, 1]"], _sweep()
        ),
    }
