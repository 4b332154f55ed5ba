"""Tables from the records in ``docs/data``, which commands wrote on a machine that they name."""

import json
from pathlib import Path
from typing import Any

from _text import number, table

DATA = Path(__file__).resolve().parent / "data"


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DATA / name).read_text())
    return content


def _cost_rows(rows: list[dict[str, Any]]) -> list[list[str]]:
    def share(row: dict[str, Any], key: str) -> str:
        return f"{row[key]:.2f}" if key in row else ""

    return [
        [f"`{row['spec']}`"]
        + [share(row, f"{way} {k}") for k in ("forward", "backward") for way in ("module", "compile")]
        + [number(row["module saved"], 4)]
        for row in rows
    ]


def _architecture_rows(content: dict[str, Any]) -> list[list[str]]:
    return [
        [
            row["architecture"],
            ", ".join(f"`{name}`" for name in row["activations"]) + (", gated" if row["gated"] else ""),
        ]
        for row in content["rows"]
    ]


def records() -> dict[str, str]:
    """Return the tables of costs and of architectures.

    Returns:
        Texts by their names in the template.
    """
    cost, architectures = _read("activation_cost.json"), _read("architectures.json")
    head = [f"{k} {way}" for k in ("forward", "backward") for way in ("module", "compiled")]
    machine = {key.replace("_", " "): value for key, value in cost["machine"].items() if value is not None}
    return {
        "cost_machine": "; ".join(f"{key}: {value}" for key, value in machine.items()),
        "cost_table": table(["activation", *head, "saved"], _cost_rows(cost["activations"])),
        "library_versions": " and ".join(f"{name} {version}" for name, version in architectures["versions"].items()),
        "architecture_table": table(["architecture", "activation"], _architecture_rows(architectures)),
    }
