"""What is known of the kernels without a GPU: what they compile to, and their values over all 16-bit inputs."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # the machinery that the tests use too

import kernel_errors

TESTS = Path(__file__).resolve().parents[1] / "tests"
HOPPER = 90
QUICK = "gelu"
Row = dict[str, Any]
Show = Callable[[str], None]


def compiled(show: Show, quick: bool) -> Iterator[Row]:
    """Compile every template for every function, dtype and generation, and count.

    Args:
        show: Prints a line.
        quick: Take one function, dtype and generation.

    Yields:
        Template, function, dtype, generation, and what a thread does for an element.
    """
    from compiled_kernels import GENERATIONS, template_cases  # needs Triton

    show(f"{'template':<24}{'function':<16}{'dtype':<6}{'sm':>4}{_HEAD}  limit")
    for case in (case for dtype in ("bf16", "fp16") for case in template_cases(dtype)):
        if quick and (case.function, case.dtype) != (QUICK, "bf16"):
            continue
        for generation in (HOPPER,) if quick else GENERATIONS:
            row = {"template": case.template, "function": case.function, "dtype": case.dtype, "sm": generation}
            row |= case.compiled(generation).summary() | {"limit": case.most}
            place = f"{case.template:<24}{case.function:<16}{case.dtype:<6}{generation:>4}"
            show(f"{place}{_counts(row)}{row['limit']:>7}")
            yield row


_HEAD = f"{'instr.':>8}{'MUFU':>6}{'regs':>6}{'spills':>8}{'bits':>8}"


def _counts(row: Row) -> str:
    widths = "/".join(row["widths"])
    return (
        f"{row['instructions']:>8.2f}{row['mufu']:>6.2f}{row['registers']:>6}{row['beside_registers']:>8g}{widths:>8}"
    )


def inductors(show: Show, quick: bool) -> list[Row]:
    """Compile what torch.compile makes of torch's own functions and of fused ones, and count.

    Args:
        show: Prints a line.
        quick: Take one function and generation.

    Returns:
        Who wrote the formula, function, pass, generation, and what threads of each kernel do for an element.
    """
    from compiled_kernels import GENERATIONS

    chosen = ["--only", *(f"{who} {what}" for what in (QUICK, f"bias and {QUICK}") for who in ("torch", "fused"))]
    generations = [str(HOPPER)] if quick else list(map(str, GENERATIONS))
    found = json.loads(_written("inductor_kernels.py", *generations, *(chosen if quick else ())).decode())
    show(f"{'kernel of torch.compile':<30}{'pass':<10}{'sm':>4}{_HEAD}")
    rows = []
    for name, directions in found.items():
        formula, _, function = name.partition(" ")
        for direction, by_generation in directions.items():
            for generation, kernels in by_generation.items():
                place = {"formula": formula, "function": function, "pass": direction, "sm": int(generation)}
                rows.append(place | {"kernels": kernels})
                for kernel in kernels:
                    counts = _counts(kernel) if "instructions" in kernel else f"  {kernel['kernel']}: sums, not counted"
                    show(f"{name:<30}{direction:<10}{generation:>4}{counts}")
    return rows


def values(show: Show) -> list[Row]:
    """Compare kernels in Triton's interpreter, their formulas, and torch's formulas in float32 with float64.

    Args:
        show: Prints a line.

    Returns:
        A row for each function, dtype and way to compute it.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values.npz"
        path.write_bytes(_written("interpreted_kernels.py"))
        with np.load(path) as file:
            kernels = dict(file)
    ways = {
        "kernel": kernels,
        "formula": kernel_errors.by_formulas(),
        "torch's formula": kernel_errors.by_torchs_formulas(),
    }
    return compared(ways, show)


def compared(ways: dict[str, dict[str, Any]], show: Show) -> list[Row]:
    """Return errors of several ways to compute all functions.

    Args:
        ways: By name, arrays by their names in `kernel_errors`.
        show: Prints a line.

    Returns:
        Function, dtype, way, the largest error of f in last places where f is normal, the input that it is at, the
        share of values that are not the nearest, and the largest error of f' in last places of 1.13.
    """
    show(f"{'function':<14}{'dtype':<10}{'way':<18}{'f, ulp':>10}{'at x':>12}{'not nearest':>13}{'slope, ulp':>12}")
    rows = []
    for function in kernel_errors.ORACLES:
        for dtype in kernel_errors.DTYPES:
            for way, found in ways.items():
                if f"{function} {dtype} value" in found:
                    rows.append({"function": function, "dtype": dtype, "way": way, **_errors(found, function, dtype)})
                    show(_value_line(rows[-1]))
    return rows


def _errors(found: dict[str, Any], function: str, dtype: str) -> Row:
    errors = kernel_errors.value_errors(found[f"{function} {dtype} value"], function, dtype)
    where = kernel_errors.inputs(dtype)[kernel_errors.normal(function, dtype)]
    row: Row = {
        "value_ulp": float(errors.max()),
        "at": float(where[errors.argmax()]),
        "not_nearest": float((errors > 0.5).mean()),
        "slope_ulp": None,
    }
    if f"{function} {dtype} slope" in found:
        slopes = kernel_errors.slope_errors(found[f"{function} {dtype} slope"], function, dtype)
        row["slope_ulp"] = float(slopes.max())
    return row


def _value_line(row: Row) -> str:
    slope = "-" if row["slope_ulp"] is None else f"{row['slope_ulp']:.3f}"
    place = f"{row['function']:<14}{row['dtype']:<10}{row['way']:<18}"
    return f"{place}{row['value_ulp']:>10.3f}{row['at']:>12.4g}{row['not_nearest']:>12.3%}{slope:>12}"


def _written(script: str, *arguments: str) -> bytes:
    """Return what a script of the tests writes, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"written{'.npz' if script.startswith('interpreted') else '.json'}"
        command = [sys.executable, "-P", "-W", "ignore", str(TESTS / script), str(path), *arguments]
        subprocess.run(command, check=True)  # noqa: S603 - our own script
        return path.read_bytes()
