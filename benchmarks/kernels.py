"""The fused kernels: what they compile to, their values, their speed and what memory a step takes.

    python benchmarks/kernels.py                    on a GPU: share of copy speed and memory; without one: --static
    python benchmarks/kernels.py --sweep            from which size on kernels are faster (routes.THRESHOLD)
    python benchmarks/kernels.py --static           instructions an element, of four generations of GPUs; needs none
    python benchmarks/kernels.py --values           errors over all inputs of both 16-bit dtypes; needs no GPU
    python benchmarks/kernels.py --device cpu --quick          the tables of a GPU, small, to see that they are made

``--static``: every template of lit_gelu/activations/gpu/templates.py for bfloat16 and float16, and what torch.compile
makes of torch's functions and of fused ones, compiled ahead of time. An H200 leaves 31 instructions an element forward
and 47 backward while it copies 16-bit numbers. ``--values``: kernels in Triton's interpreter, formulas, and torch's own
formulas in float32, beside float64.

Share of copy speed: bytes that are read and written in a second beside those of ``clone``; "eager" is what a user
would write in torch, "compile" torch.compile of it, "fused" the kernel, "f.+comp." torch.compile of the fused module.
All take turns in one process; medians of the rounds. Memory: what autograd keeps beside parameters, and the peak.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # with python -P it is not there

import torch
from _gpu_machine import machine, versions
from _gpu_record import NO_FIGURES
from _kernel_memory import NETS, lacking, memory_line, needed
from _kernel_memory import WAYS as MEMORY_WAYS
from _kernel_proofs import compiled, inductors, values
from _kernel_speed import (
    DTYPES,
    LARGEST,
    SMALLEST,
    SPECS,
    example,
    share_head,
    share_line,
    shares,
    sweep_line,
    swept,
    threshold,
)
from activations import Clock, keep_freed_memory
from torch._functorch import config as functorch_config

from lit_gelu.files import without_nonfinite, write_atomically

ELEMENTS = 1 << 28
QUICK_ELEMENTS = 1 << 12
QUICK_SPECS = 3
Show = Callable[[str], None]


def static(options: argparse.Namespace, show: Show) -> dict[str, Any]:
    """Compile ahead of time."""
    return {"templates": list(compiled(show, options.quick)), "inductor": inductors(show, options.quick)}


def speed(options: argparse.Namespace, show: Show) -> dict[str, Any]:
    """Measure shares of copy speed."""
    cuda, found = options.device == "cuda", {}
    clock = Clock(torch.device(options.device), threads=1)
    for dtype in options.dtypes:
        x = example(options.n, dtype, options.device)
        show(f"\n{dtype}, {x.numel():,} elements\n{share_head()}")
        rows = []
        for spec in SPECS[: QUICK_SPECS if options.quick else None]:
            row = shares(spec, x, clock, 2 if options.quick else 7, 10 if cuda else 1, may_compile=cuda)
            rows.append(row)
            show(share_line(row))
        found[dtype] = rows
    return found


def sweep(options: argparse.Namespace, show: Show) -> dict[str, Any]:
    """Time sizes, and find from which on the kernel is faster."""
    clock, found = Clock(torch.device(options.device), threads=1), {}
    sizes = range(SMALLEST, SMALLEST + 3) if options.quick else range(SMALLEST, LARGEST + 1)
    rounds, repeats = (2, 2) if options.quick else (9, 50)
    for dtype in options.dtypes:
        show(f"\n{dtype}, GELU: time of the kernel / eager\n{'elements':>12}{'forward':>9}{'backward':>9}")
        rows = []
        for power in sizes:
            rows.append(swept(1 << power, dtype, options.device, clock, rounds, repeats))
            show(sweep_line(rows[-1]))
        found[dtype] = {"rows": rows, "threshold": threshold(rows)}
        show(f"never slower from {found[dtype]['threshold']} elements on")
    return found


def memory(options: argparse.Namespace, show: Show) -> dict[str, Any]:
    """Measure what a step keeps and needs."""
    show(f"\n{'net':<8}{'way':<10}{'saved, MiB':>14}{'peak, MiB':>14}")
    found: dict[str, Any] = {}
    for net in NETS:
        for way in MEMORY_WAYS:
            if why := lacking(way):
                found[f"{net}, {way}"] = {"left out": why}
                show(f"{net:<8}{way:<10}left out: {why}")
                continue
            row = needed(net, way, options.device, options.quick)
            found[f"{net}, {way}"] = row
            show(memory_line(net, way, row))
    return found


def all_values(_: argparse.Namespace, show: Show) -> dict[str, Any]:
    """Compare with float64."""
    return {"rows": values(show)}


PARTS: dict[str, Callable[[argparse.Namespace, Show], dict[str, Any]]] = {
    "static": static,
    "values": all_values,
    "speed": speed,
    "sweep": sweep,
    "memory": memory,
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for part in PARTS:
        parser.add_argument(f"--{part}", dest="parts", action="append_const", const=part, help="this part")
    there = torch.cuda.is_available()
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if there else "cpu")
    parser.add_argument("--n", type=int, help=f"elements; by default {ELEMENTS:,}")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--quick", action="store_true", help="small sizes and few rows: shows that it runs")
    parser.add_argument("--json", help="write the figures to this file too; - prints them, and nothing else")
    options = parser.parse_args(arguments)
    options.parts = options.parts or (["speed", "memory"] if there or options.quick else ["static"])
    if options.device == "cpu" and not options.quick and not {"static", "values"}.issuperset(options.parts):
        parser.error("--device cpu takes hours at full size: add --quick")
    options.n = options.n or (QUICK_ELEMENTS if options.quick else ELEMENTS)
    return options


def written(value: Any, indent: str = "") -> str:
    """Return JSON in which a row of a table is one line."""
    inner = indent + " "
    if isinstance(value, dict) and any(isinstance(each, dict | list) for each in value.values()):
        parts = [f"{json.dumps(key)}: {written(each, inner)}" for key, each in value.items()]
        opened, closed = "{", "}"
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        parts, (opened, closed) = [json.dumps(each) for each in value], "[]"
    else:
        return json.dumps(value)
    lines = f",\n{inner}".join(parts)
    return f"{opened}\n{inner}{lines}\n{indent}{closed}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, and write the record if one is asked for."""
    options = parse(arguments)
    show = partial(print, file=sys.stderr if options.json == "-" else sys.stdout, flush=True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_freed_memory()
    functorch_config.donated_buffer = False  # the graph is kept for repeated backward passes
    record: dict[str, Any] = {"machine": machine(options.device), "versions": versions(), "device": options.device}
    record |= {"quick": options.quick, "note": NO_FIGURES if options.quick else ""}
    show(f"{record['machine']['device']}, {platform.platform()}, torch {torch.__version__}")
    for part in options.parts:
        record[part] = PARTS[part](options, show)
    text = written(without_nonfinite(record, as_text=True)) + "\n"
    if options.json == "-":
        sys.stdout.write(text)
    elif options.json:
        with write_atomically(Path(options.json)) as path:
            path.write_text(text, encoding="utf-8")
        show(f"wrote {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
