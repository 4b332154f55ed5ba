"""Ask every runtime which activation it computes, and write ``docs/who_computes_what.md``.

    pip install -e '.[runtimes]' && python docs/make_who_computes_what.py --measure

Without ``--measure``, as ``make docs`` calls it, the page is written anew from the record in ``docs/data``. Each
runtime is measured in a process of its own; one that is not installed keeps its rows of the record.
"""

import argparse
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from _pages import with_blocks, write
from _runtimes import COLUMNS, RUNTIMES, Function, Runtime
from _text import number, table

from lit_gelu import activations
from lit_gelu.audit import identify
from lit_gelu.audit.black_box import BlackBox
from lit_gelu.audit.number_format import FloatFormat
from lit_gelu.errors import AuditError
from lit_gelu.files import write_atomically

PAGE = Path(__file__).resolve().parent / "who_computes_what.md"
RECORD = Path(__file__).resolve().parent / "data" / "who_computes_what.json"
DENSE = 65_537  # equally spaced float32 inputs from -8 to 8, beside those of every power of two


def largest_error(function: Function, spec: str, dtype: str) -> tuple[float, float]:
    """Return the largest error in units of the last place of the true value where x is from -8 to 8, and where it is.

    Inputs and values that are subnormal, and values that are not finite, are left out: `identify` notes them.

    Args:
        function: From array to array, or tensor to tensor.
        spec: What it computes.
        dtype: Of its inputs.

    Returns:
        The error and the input.
    """
    number_format = FloatFormat(getattr(torch, dtype))
    x = number_format.all_inputs()
    if number_format.wide:
        x = torch.cat([x, torch.linspace(-8, 8, DENSE, dtype=torch.float64).float().double()]).unique()
    values = activations.create(spec).double().eval()(x).detach()
    smallest = torch.finfo(number_format.dtype).smallest_normal
    kept = (x.abs() <= 8) & (x.abs() >= smallest) & (values.abs() >= smallest)
    x, values = x[kept], values[kept]
    y = BlackBox(function, number_format)(x)
    errors = (y - values).abs() / number_format.spacing(values)
    errors = errors.nan_to_num(0.0, 0.0)
    return float(errors.max()), float(x[errors.argmax()])


def measure(runtime: Runtime) -> list[dict[str, Any]]:
    """Return a row for every call of a runtime that it takes."""
    rows = []
    for dtype in runtime.dtypes:
        with tempfile.TemporaryDirectory() as folder:
            for spec, call, function in runtime.calls(dtype, Path(folder)):
                try:
                    identity = identify(function, dtype)
                except AuditError as error:
                    print(f"{call} in {dtype}: {error}", file=sys.stderr)
                    continue
                computed = spec if spec in identity.specs else identity.spec
                ulp, place = largest_error(function, computed or spec, dtype)
                rows.append({
                    "runtime": runtime.name, "dtype": dtype, "asked": spec, "call": call, "computed": computed,
                    "tied": list(identity.tied), "ulp": ulp, "at": place, "notes": list(identity.notes),
                })  # fmt: skip
    return rows


def processor() -> dict[str, Any]:
    """Return what kernels choose their instructions by."""
    file = Path("/proc/cpuinfo")
    text = file.read_text() if file.exists() else ""
    name = re.search(r"model name\s*: (.*)", text)
    features = sorted(set(re.findall(r"\b(?:avx2|avx512f|avx512_\w+16|amx_\w+|asimdhp|bf16)\b", text)))
    return {"processor": name[1] if name else platform.processor() or platform.machine(), "features": features}


def measure_all(names: list[str]) -> None:
    """Measure runtimes, each in a process of its own, and write their rows into the record."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"rows": []}
    for runtime in RUNTIMES:
        if names and runtime.name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "rows.json"
            command = [sys.executable, __file__, "--one", runtime.name, "--to", str(result)]
            code = subprocess.run(command, check=False).returncode  # noqa: S603 - this file
            if code or not result.exists():
                print(f"{runtime.name} is not measured: exit status {code}")
                continue
            rows = json.loads(result.read_text())
        record["rows"] = [row for row in record["rows"] if row["runtime"] != runtime.name] + rows
        record.setdefault("versions", {})[runtime.name] = importlib.metadata.version(runtime.distribution)
        print(f"{runtime.name}: {len(rows)} rows")
    order = {runtime.name: place for place, runtime in enumerate(RUNTIMES)}
    record["rows"].sort(key=lambda row: order[row["runtime"]])
    record["machine"] = processor()
    with write_atomically(RECORD) as path:
        path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def _form(row: dict[str, Any]) -> str:
    return f"`{row['computed']}`" if row["computed"] else "none that is registered"


def _forms(record: dict[str, Any]) -> str:
    """Return which form of GELU each runtime's shortest call computes."""
    rows = []
    for name in dict.fromkeys(row["runtime"] for row in record["rows"]):
        calls = [row for row in record["rows"] if row["runtime"] == name and "gelu" in row["call"].lower()]
        shortest = min(calls, key=lambda row: (row["dtype"] != "float32", len(row["call"])))
        rows.append([name, record["versions"][name], f"`{shortest['call']}`", _form(shortest)])
    return table(["runtime", "version", "call", "computes"], rows)


def _differing(record: dict[str, Any]) -> str:
    rows = [
        [row["runtime"], row["dtype"], f"`{row['call']}`", f"`{row['asked']}`", _form(row)]
        for row in record["rows"]
        if row["computed"] != row["asked"]
    ]
    return table(["runtime", "dtype", "call", "documented as", "computes"], rows)


def _errors(record: dict[str, Any]) -> str:
    cells = {(row["runtime"], row["dtype"], row["asked"]): row for row in record["rows"]}
    rows = []
    for name, dtype in dict.fromkeys((row["runtime"], row["dtype"]) for row in record["rows"]):
        columns = [cells.get((name, dtype, spec)) for spec in COLUMNS]
        texts = ["" if row is None else f"{number(row['ulp'], 2)} at {number(row['at'], 3)}" for row in columns]
        rows.append([f"{name}, {dtype}", *texts])
    head = ["GELU", "tanh form", "sigmoid form", "SiLU", "Mish", "Softplus", "ELU", "HardSwish"]
    return table(["", *head], rows)


def _notes(record: dict[str, Any]) -> str:
    """Return which values are no numbers, or of a coarser dtype; functions and runtimes with the same note together."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for row in record["rows"]:
        for note in row["notes"]:
            if not note.startswith(("subnormal", "errors are on")):  # the table of errors has these
                groups.setdefault((row["runtime"], row["dtype"], note), []).append(row["asked"])
    same: dict[tuple[str, str, str], list[str]] = {}
    for (runtime, dtype, note), specs in groups.items():
        functions = "all" if len(specs) == len(COLUMNS) else ", ".join(specs)
        same.setdefault((functions, dtype, note), []).append(runtime)
    rows = [[*key, "; ".join(runtimes)] for key, runtimes in same.items()]
    return table(["functions", "dtype", "values", "runtimes"], rows)


def page() -> str:
    """Return the page as the record has it.

    Returns:
        Its text.
    """
    record = json.loads(RECORD.read_text())
    machine = record["machine"]
    return with_blocks(
        PAGE,
        {
            "machine": f"{machine['processor']} with {', '.join(machine['features'])}.",
            "forms": _forms(record),
            "differing": _differing(record),
            "errors": _errors(record),
            "notes": _notes(record),
        },
    )


def main() -> None:
    """Measure what is asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs="*", metavar="RUNTIME", help="measure these runtimes, or all")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        runtime = next(runtime for runtime in RUNTIMES if runtime.name == arguments.one)
        arguments.to.write_text(json.dumps(measure(runtime)))
        return
    if arguments.measure is not None:
        measure_all(arguments.measure)
    write(PAGE, page())


if __name__ == "__main__":
    main()
