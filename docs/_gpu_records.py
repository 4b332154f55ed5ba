"""Tables from the records of ``benchmarks/gpu.py`` that lie in ``docs/data`` as ``gpu-STAGE.json``."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from _text import number, table

DATA = Path(__file__).resolve().parent / "data"
NONE = (
    "No record of a GPU exists yet: none of the stages has run on one. On a CPU all of them run to their end in the\n"
    "tests, which shows that the script works, and nothing about a GPU."
)
Record = Mapping[str, Any]
_APART = "from the run alone in float64"  # largest difference of weights, as a share of the largest of a tensor


def _doctor(record: Record) -> str:
    findings = record["figures"].get("findings", [])
    return table(["check", "", "what it says"], [[each["check"], each["level"], each["text"]] for each in findings])


def _tests(record: Record) -> str:
    rows = [
        [
            f"`{figure['file']}`",
            ", ".join(f"{count} {kind}" for kind, count in figure["counts"].items()),
            figure["ended"],
        ]
        for name, figure in record["figures"].items()
        if name != "total"
    ]
    return table(["file", "tests", "how it ended, if not by itself"], rows)


def _parity(record: Record) -> str:
    rows = []
    for name, figure in record["figures"].items():
        beside = [figure["refused"].partition(":")[0], ", ".join(figure["on_cpu"])]
        beside += [f"{count} {copy}" for copy, count in figure["copies"].items()]
        extremes = [row["inputs"] for row in figure["extremes"] if not row["passed"]]
        errors = [_short(figure["error"]), _short(figure["own_error"])]
        verdict = "passed" if figure["passed"] else "; ".join(figure["reasons"])
        rows.append([name, verdict, *errors, ", ".join(extremes), "; ".join(filter(None, beside))])
    return table(["module", "parity", "error", "PyTorch's", "extremes that fail", "beside the GPU"], rows)


def _export(record: Record) -> str:
    rows = [
        [f"{found['net']}, {found['form']}, {found['batch_size']}", row["variant"]]
        + [number(row[key], 3) for key in ("alone", "alone_ratio", "in_a_row", "in_a_row_ratio", "error")]
        for found in record["figures"].values()
        for row in found["rows"]
    ]
    return table(["net, GELU, batch", "", "alone, ms", "/ best torch", "in a row, ms", "/ best torch", "error"], rows)


def _activations(record: Record) -> str:
    keys = [f"{way} {k}" for k in ("forward", "backward") for way in ("module", "eager", "compile")]
    rows = [
        [name, *(f"{figure[key]:.2f}" if key in figure else "" for key in keys)]
        for name, figure in record["figures"].items()
        if isinstance(figure, dict)
    ]
    copies = "; ".join(
        f"{name}: {figure}" for name, figure in record["figures"].items() if not isinstance(figure, dict)
    )
    return f"Share of copy speed ({copies}).\n\n" + table(["activation", *keys], rows)


def _kernels(record: Record) -> str:
    figures = record["figures"]
    ways = [f"{way} {k}" for k in ("forward", "backward") for way in ("eager", "compile", "fused", "fused, compile")]
    speed = [
        [name.removeprefix("speed, "), *(f"{row[way]:.2f}" if way in row else "" for way in ways), row["route"][0]]
        for name, row in figures.items()
        if name.startswith("speed, ")
    ]
    memory = [
        [name.removeprefix("memory, "), *(_short(row[key] / 2**20) for key in ("saved_bytes", "peak_bytes"))]
        for name, row in figures.items()
        if name.startswith("memory, ")
    ]
    parts = ["Share of copy speed:", table(["activation", *ways, "fused ran"], speed)]
    if "errors" in figures:
        parts += [f"Largest errors on the device: {_largest_errors(figures['errors'])}."]
    if "threshold" in figures:
        parts += [f"Never slower than eager from {figures['threshold']} elements on, in bfloat16."]
    return "\n\n".join([*parts, table(["net", "saved, MiB", "peak, MiB"], memory)])


def _largest_errors(rows: list[dict[str, Any]]) -> str:
    value, slope = (max(rows, key=lambda row: row[key]) for key in ("value_ulp", "slope_ulp"))
    return (
        f"f {number(value['value_ulp'], 3)} last places ({value['function']}, {value['dtype']}), "
        f"f' {number(slope['slope_ulp'], 3)} of 1.13's ({slope['function']}, {slope['dtype']})"
    )


def _training(record: Record) -> str:
    figures = record["figures"]
    steps, epochs = figures.get("milliseconds a step", {}), figures.get("epochs") or {}
    rows = [
        [name, number(value, 3), number(steps["beside nothing"][name], 4)]
        for name, value in steps.get("milliseconds", {}).items()
    ]
    parts = [table(["callbacks", "ms a step", "/ nothing"], rows), f"Data: {record.get('data', '')}."]
    if epochs.get("curve"):
        last = epochs["curve"][-1]
        figures = ", ".join(f"{name} {number(value, 4)}" for name, value in last.items())
        parts.append(f"{number(epochs['seconds an epoch'], 3)} s an epoch; the last one: {figures}.")
    return "\n\n".join(parts)


STAGES: dict[str, Callable[[Record], str]] = {
    "doctor": _doctor,
    "tests": _tests,
    "parity": _parity,
    "export": _export,
    "activations": _activations,
    "kernels": _kernels,
    "cifar10": _training,
    "wrn": _training,
}


def _short(value: float | None) -> str:
    return "" if value is None else number(value, 2) if isinstance(value, float) else str(value)


def _about(record: Record) -> str:
    """Return in a line what the figures depend on."""
    facts = {**record["machine"], **record["versions"]}
    names = ("device", "driver", "python", "torch", "cuda", "cudnn", "onnxruntime-gpu", "lightning", "triton")
    known = [f"{name} {facts[name]}" if name != "device" else facts[name] for name in names if facts.get(name)]
    seconds = sum(call["seconds"] for call in record["calls"])
    commit, _, changes = record["commit"].partition("+")
    commit = f"{commit[:12]} with changes" if changes else commit[:12]
    return f"{', '.join(known)}; commit {commit}, code {record['sources']}; {seconds:.0f} s."


def _wrong(record: Record) -> list[str]:
    """Return what failed and what is missing, as lines of a list."""
    lines = [] if record["error"] is None else [f"- ended early: {record['error'].splitlines()[0]}"]
    lines += [f"- failed: {each['what']}: {each['error'].splitlines()[0]}" for each in record["failed"]]
    by_reason: dict[str, list[str]] = {}
    for each in record["left_out"]:
        by_reason.setdefault(each["why"], []).append(each["what"])
    return lines + [f"- left out, {why}: {'; '.join(what)}" for why, what in by_reason.items()]


def section(record: Record) -> str:
    """Return what a record says, under a heading.

    Args:
        record: Of a stage.

    Returns:
        Markdown.
    """
    parts = [f"### {record['stage']}", _about(record), "\n".join(_wrong(record)), STAGES[record["stage"]](record)]
    return "\n\n".join(part for part in parts if part)


def gpu_records(folder: Path = DATA) -> str:
    """Return a section for every record, or that there is none.

    Args:
        folder: That holds them.

    Returns:
        Markdown.

    Raises:
        ValueError: If a record is not of a whole run on a GPU.
    """
    found = {}
    for path in sorted(folder.glob("gpu-*.json")):
        record = json.loads(path.read_text())
        if record["device"] != "cuda" or record["quick"] or "machine" not in record:
            raise ValueError(f"{path.name} is not of a whole run on a GPU: nothing is to be read from it on this page.")
        found[record["stage"]] = section(record)
    return "\n\n".join(found[stage] for stage in STAGES if stage in found) or NONE
