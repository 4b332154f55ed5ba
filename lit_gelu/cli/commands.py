"""The table of commands: what each is called, which module it is, and what that module's docstring says it does."""

import ast
import importlib.util
import re
from pathlib import Path

FIT = "lit_gelu.cli.fit"  # LightningCLI, which parses for itself
COMMANDS = {
    "fit": FIT,
    "validate": FIT,
    "test": FIT,
    "predict": FIT,
    "choose": FIT,
    "export": "lit_gelu.cli.export",
    "parity": "lit_gelu.cli.parity",
    "inspect": "lit_gelu.cli.inspect",
    "bench": "lit_gelu.cli.bench",
    "triton": "lit_gelu.cli.triton",
    "doctor": "lit_gelu.cli.doctor",
    "curvature": "lit_gelu.cli.curvature",
    "report": "lit_gelu.cli.report",
    "activations": "lit_gelu.cli.activations",
    "activations list": "lit_gelu.cli.activations.listing",
    "activations show": "lit_gelu.cli.activations.show",
    "activations compare": "lit_gelu.cli.activations.compare",
    "activations plot": "lit_gelu.cli.activations.plot",
    "replicas": "lit_gelu.cli.replicas",
    "replicas extract": "lit_gelu.cli.replicas.extract",
    "new": "lit_gelu.cli.new",
    "demo": "lit_gelu.cli.demo",
    "completion": "lit_gelu.cli.completion",
}


def summary(name: str) -> str:
    """Return what a command does: the text behind its name in its module's docstring."""
    # The source is read: importing the modules would load torch for a line of help.
    spec = importlib.util.find_spec(COMMANDS[name])
    source = Path(spec.origin or "").read_text(encoding="utf-8") if spec is not None else ""
    text = ast.get_docstring(ast.parse(source)) or ""
    found = re.search(rf"^``lit-gelu {name}``: (.+?)\.?$", text, re.MULTILINE)
    return found[1] if found else ""


def table(group: str = "") -> str:
    """Return a line for each command, or for each sub-command of one."""
    names = {name: name.removeprefix(group).strip() for name in COMMANDS if name.rpartition(" ")[0] == group}
    return "\n".join(f"  {short:<12} {summary(name)}" for name, short in names.items())
