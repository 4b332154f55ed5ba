"""Tables from the records of ``benchmarks/gpu.py`` that lie in ``docs/data`` as ``gpu-STAGE.json``."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from _text import number, table

DATA = Path(__file__).resolve().parent / "data"
Record = Mapping[str, Any]


def _parity(record: Record) -> str:
    figures = record["figures"]
    passed = sum(figure["passed"] for figure in figures.values())
    copies = sum(bool(figure["copies"] or figure["on_cpu"] or figure["refused"]) for figure in figures.values())
    return (
        f"{passed} of {len(figures)} files passed. {copies} have nodes on the CPU that are no "
        "arithmetic of shapes, or copies between host and device."
    )


def _export(record: Record) -> str:
    keys = ("in_a_row", "in_a_row_ratio", "error")
    rows = [
        [f"{figure['net']}, {figure['form']}, {figure['batch_size']}", row["variant"]]
        + [number(row[key], 3) for key in keys]
        for figure in record["figures"].values()
        for row in figure["rows"]
        if "untuned" not in row["variant"]  # the record of 26 November 2026 has each file twice, with the same options
    ]
    return table(["net, GELU, batch", "", "ms", "/ best torch", "error"], rows)


def _training(record: Record) -> str:
    steps = record["figures"].get("milliseconds a step", {})
    rows = [
        [name, number(value, 3), number(steps["beside nothing"][name], 4)]
        for name, value in steps.get("milliseconds", {}).items()
    ]
    return table(["callbacks", "ms a step", "/ nothing"], rows)


STAGES: dict[str, Callable[[Record], str]] = {
    "parity": _parity,
    "export": _export,
    "cifar10": _training,
    "wrn": _training,
}


def _about(record: Record) -> str:
    """Return in a line what the figures depend on."""
    facts = {**record["machine"], **record["versions"]}
    names = ("device", "torch", "onnxruntime-gpu", "lightning")
    parts = [f"{name} {facts[name]}" if name != "device" else facts[name] for name in names if facts.get(name)]
    return f"{', '.join(parts)}; commit {record['commit'][:12]}."


def _incomplete(record: Record) -> list[str]:
    """Return what failed and what is missing, as lines of a list."""
    lines = [] if record["error"] is None else [f"- ended early: {record['error'].splitlines()[0]}"]
    lines += [f"- failed: {each['what']}: {each['error'].splitlines()[0]}" for each in record["failed"]]
    by_reason: dict[str, int] = {}
    for each in record["left_out"]:
        by_reason[each["why"]] = by_reason.get(each["why"], 0) + 1
    return lines + [f"- left out, {why.partition(':')[0]}: {count}" for why, count in by_reason.items()]


def section(record: Record) -> str:
    """Return what a record says, under a heading.

    Args:
        record: Of a stage.

    Returns:
        Markdown.
    """
    parts = [f"### {record['stage']}", _about(record), "\n".join(_incomplete(record)), STAGES[record["stage"]](record)]
    return "\n\n".join(part for part in parts if part)


def gpu_records(folder: Path = DATA) -> str:
    """Return a section for every record.

    Args:
        folder: That holds them.

    Returns:
        Markdown.

    Raises:
        ValueError: If a record is not of a whole run on a GPU.
    """
    sections = {}
    for path in sorted(folder.glob("gpu-*.json")):
        record = json.loads(path.read_text())
        if record["device"] != "cuda" or record["quick"] or "machine" not in record:
            raise ValueError(f"{path.name} is not of a whole run on a GPU: nothing is to be read from it on this page.")
        sections[record["stage"]] = section(record)
    return "\n\n".join(sections[stage] for stage in STAGES if stage in sections)
