"""``lit-gelu activations``: list the registered activations, describe, compare or plot them."""

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass

import torch
from rich.table import Table

from lit_gelu.activations import compare as compare_activations
from lit_gelu.activations import plot as plot_activations
from lit_gelu.activations import registry
from lit_gelu.cli.terminal import console_for_output, write_json
from lit_gelu.display import readable
from lit_gelu.errors import ArgumentError
from lit_gelu.files import write_atomically


def activations(*names: str, json: bool = False) -> int:
    """List the registered activations whose names match, or say everything that is known of one.

    in a shell:
      lit-gelu activations                                   all of them
      lit-gelu activations "*elu" "hard_*"                   those whose name matches
      lit-gelu activations "swish(beta=1.5)"                 everything that is known of one
      lit-gelu activations gelu silu --json                  the same of several, as plain data

    Args:
        *names: patterns over names, or specs; all by default
        json: print plain data
    """
    torch.set_num_threads(1)  # the arrays are small: threads that wait for each other take several times as long
    specs = selected(names or ["*"])
    infos = [registry.info(spec) for spec in specs]
    if json:
        write_json([{**asdict(info), "spec": str(info.spec)} for info in infos], "-")
        return 0
    if len(infos) == 1:
        details = Table(title=str(infos[0].spec), title_justify="left", show_header=False)
        for name, fact in vars(infos[0]).items():
            if name != "spec":
                details.add_row(name.replace("_", " "), readable(vars(fact) if is_dataclass(fact) else fact))
        console_for_output(highlight=False).print(details)
        return 0
    table = Table(title=f"{len(infos)} activations", title_justify="left")
    for column in ("activation", "f(x)", "derivatives", "monotone", "convex", "minimum at", "minimum", "max |f'|"):
        table.add_column(column, overflow="fold")
    for name, info in zip(specs, infos, strict=True):
        derivatives = "all" if info.smoothness == math.inf else info.smoothness
        at, low = info.minimum or (None, None)
        facts = map(readable, (derivatives, info.monotone, info.convex, at, low, info.lipschitz))
        spec = str(info.spec)
        table.add_row(name if name == spec else f"{name} = {spec}", info.formula, *facts)
    console_for_output().print(table)
    return 0


def compare(a: str, b: str, *, interval: Sequence[float] = (-12.0, 12.0), json: bool = False) -> int:
    """How far two activations lie apart in f, f' and f'', and where.

    in a shell:
      lit-gelu activations compare gelu gelu_tanh
      lit-gelu activations compare silu hard_swish --interval -6 6
      lit-gelu activations compare gelu "swish(beta=1.702)" --json

    Args:
        a: a spec
        b: another
        interval: where to compare, from and to
        json: print plain data
    """
    torch.set_num_threads(1)
    comparison = compare_activations(a, b, _pair(interval))
    if json:
        write_json(comparison.to_dict(), "-")
    else:
        console_for_output(highlight=False, soft_wrap=True).print(str(comparison))
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
    if not names:
        raise ArgumentError('No activation was named. Give specs, or patterns over names: gelu "hard_*".')
    figure = plot_activations(*selected(names), interval=_pair(interval), derivatives=list(derivatives))
    with write_atomically(output) as temporary:
        try:
            figure.savefig(temporary, dpi=150)
        except ValueError as error:
            raise ArgumentError(f"Cannot write {output!r}: {error}. Use .png, .svg or .pdf.") from error
    sys.stderr.write(f"wrote {output}\n")
    return 0


def selected(names: Sequence[str]) -> list[str]:
    """Return the specs that names and patterns stand for."""
    specs: dict[str, None] = {}
    for name in names:
        is_pattern = "(" not in name and bool(set(name) & set("*?["))
        matching = registry.list_activations(name) if is_pattern else [name]
        if not is_pattern or not matching:
            registry.resolve(name)  # raises, with near names and the list, if there is no such activation
        specs.update(dict.fromkeys(matching))
    return list(specs)


def _pair(interval: Sequence[float]) -> tuple[float, float]:
    if len(interval) != 2:
        raise ArgumentError(f"--interval takes two numbers, from and to, and {len(interval)} were given.")
    return interval[0], interval[1]
