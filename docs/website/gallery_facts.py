"""The tables of an activation's page: facts, gains, cost, accuracy, ONNX operators, and who uses it."""

import json
import math
from collections.abc import Iterator
from typing import Any

from _lowering_rows import recipe_rows
from _text import number, several, table

from lit_gelu import activations
from lit_gelu.activations import ActivationInfo
from lit_gelu.export.lowering.lowering_table import TABLE, row_key
from website.places import ROOT

DATA = ROOT / "docs" / "data"


def sections(name: str, info: ActivationInfo) -> Iterator[str]:
    """Give the parts of a page that are tables.

    Args:
        name: The name under which the registry builds it.
        info: What is known of it.

    Yields:
        Headings, sentences and tables in Markdown.
    """
    yield "## Facts\n"
    yield table(["fact", "value"], facts(name, info)) + "\n"
    yield from _gains(info)
    yield from _cost(str(info.spec))
    yield from _accuracy(info)
    yield from _lowering(info)
    yield from _users(name, info)


def facts(name: str, info: ActivationInfo) -> list[list[str]]:
    """Return what is known of an activation, a row each; what does not apply has none."""
    smooth = "" if info.smoothness is None else "all" if info.smoothness == math.inf else f"{info.smoothness:g}"
    rows = [
        ["other names", ", ".join(f"`{alias}`" for alias in info.aliases)],
        ["spec", f"`{info.spec}`" if str(info.spec) != name else ""],
        ["range", f"{number(info.range[0], 6)} to {number(info.range[1], 6)}" if info.range else ""],
        ["lowest point", f"{number(info.minimum[1])} at x = {number(info.minimum[0])}" if info.minimum else ""],
        ["inflections", several(info.inflections)],
        ["f'(0)", "" if info.derivative_at_zero is None else number(info.derivative_at_zero)],
        ["largest slope, sup abs f'", "" if info.lipschitz is None else number(info.lipschitz)],
        ["jumps of f'", ", ".join(f"{number(jump, 6)} at x = {number(x, 6)}" for x, jump in info.kinks)],
        ["continuous derivatives", smooth],
        ["on the left", info.asymptotes[0] if info.asymptotes else ""],
        ["on the right", info.asymptotes[1] if info.asymptotes else ""],
        ["never falls", _yes(info.monotone)],
        ["convex", _yes(info.convex)],
        ["has learned parameters", _yes(info.learnable)],
        ["draws random numbers in training", _yes(info.stochastic or None)],
        ["halves a dimension", _yes(info.halves or None)],
    ]
    return [row for row in rows if row[1]]


def _yes(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _gains(info: ActivationInfo) -> Iterator[str]:
    if info.gains is None:
        return
    yield "## Gains\n"
    yield "For pre-activations from the normal distribution with mean 0: [what a gain keeps](../gains.md).\n"
    deviations = (0.5, 1.0, 2.0)
    rows = [
        [kind, *(number(activations.gain(info.spec, kind, std=std), 7) for std in deviations)]
        for kind in ("forward", "variance", "backward")
    ]
    yield table(["gain", *(f"deviation {std:g}" for std in deviations)], rows) + "\n"


def _record(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DATA / name).read_text())
    return content


def _cost(spec: str) -> Iterator[str]:
    """Give what it costs, from the record of the benchmark."""
    record = _record("activation_cost.json")
    rows = [row for row in record["activations"] if row["spec"] == spec]
    if not rows:
        return
    machine = record["machine"]
    yield "## Cost\n"
    yield (
        f"On {machine['device']}, torch {machine['torch']}, {machine['dtype']}, {machine['elements']:,} elements. "
        "Speed is a share of what copying the input takes: 1 is as fast as a copy. Saved is what autograd keeps for "
        "the backward pass, in bytes for one element. [How it was measured](../activations.md#cost-and-memory).\n"
    )
    kinds = ("forward", "backward", "saved")
    lines = [
        [words, *(number(row[key], 4) if key in row else "" for key in (f"{way} {kind}" for kind in kinds))]
        for row in rows
        for way, words in (("module", "the module"), ("eager", "written in torch"), ("compile", "compiled"))
    ]
    yield table(["code", *kinds], lines) + "\n"


def accuracy_rows(name: str, arguments: dict[str, Any], page: str) -> list[list[str]]:
    """Return the measured errors of an activation from the page on numerics.

    Args:
        name: Canonical name.
        arguments: Of the spec; where one of them is a word, only the rows with that word are its own.
        page: The text of ``docs/numerics.md``.

    Returns:
        Cells of the rows, the parameters in place of the name.
    """
    words = [value for value in arguments.values() if isinstance(value, str)]
    found = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        case, _, values = cells[0].partition("-")
        word = values if values[:1].isalpha() else ""
        if case == name and len(cells) == 7 and word in (words or ["", "normal"]):
            found.append([values if values and not word else "as it stands", *cells[1:]])
    return found


def _accuracy(info: ActivationInfo) -> Iterator[str]:
    page = (ROOT / "docs" / "numerics.md").read_text()
    rows = accuracy_rows(info.spec.name, info.spec.arguments, page)
    if not rows:
        return
    yield "## Accuracy\n"
    yield (
        f"The largest error of `lit_gelu.activations.functional.{info.spec.name}` and its derivatives, in units of the "
        "bound that [the page on numerics](../numerics.md) states.\n"
    )
    orders = ("f", "f'", "f''")
    head = ["parameters", *(f"{dtype} {order}" for dtype in ("float64", "float32") for order in orders)]
    yield table(head, rows) + "\n"


def _lowering(info: ActivationInfo) -> Iterator[str]:
    """Give what it becomes in an ONNX file."""
    yield "## In an ONNX file\n"
    key = None if info.halves else row_key(info.spec.name, info.spec.arguments)
    if key is None:
        yield "It has no recipe of its own: torch's exporter writes the operations that it is made of.\n"
        return
    yield (
        "Inner nodes first. `fp32:` marks what a file of 16 bits computes in float32. The error is the absolute one, "
        "beside the last place, in strict files of 16 bits. [All recipes](../lowering.md).\n"
    )
    yield table(["recipe", "where", "error"], recipe_rows(key)) + "\n"
    notes = TABLE[key].notes
    if notes:
        yield "\n".join(f"- {where}: {text}" for where, text in notes.items()) + "\n"


def _users(name: str, info: ActivationInfo) -> Iterator[str]:
    """Give the architectures that use it."""
    known = {name, str(info.spec), *info.aliases}
    content = _record("architectures.json")
    rows = [row for row in content["rows"] if known & set(row["activations"])]
    if rows:
        yield "## Where it is used\n"
        lines = [[row["architecture"] + (", gated" if row["gated"] else ""), row["source"]] for row in rows]
        yield table(["architecture", "read from"], lines) + "\n"
