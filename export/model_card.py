"""The ``README.md`` beside an exported file: what it computes, what it takes and gives, and how far that is proved."""

import re
from collections.abc import Sequence
from pathlib import Path

from lit_gelu.display import count_of
from lit_gelu.export.inspection import FileInspection, inspect_onnx
from lit_gelu.export.parity.report import ParityReport, cell_text, figure


def model_card(
    path: Path, source: str, model: str, parity: ParityReport | None, command: str, notes: Sequence[str] = ()
) -> str:
    """Return a file's model card in Markdown.

    Args:
        path: The file.
        source: What the model is called.
        model: The class that computes it in PyTorch.
        parity: The file's proof, if it was compared.
        command: What compares it again, in a shell.
        notes: What a reader should know, such as what a swap of activations changes.
    """
    inspection = inspect_onnx(path)
    parts = [
        "---\nlibrary_name: onnx\ntags:\n- onnx\n- onnxruntime\n- lit-gelu\n---",
        f"# {source} as ONNX",
        f"`{path.name}` computes in onnxruntime what `{model}` of `{source}` computes in PyTorch. {_verdict(parity)}",
        *(f"- {note}" for note in notes),
        f"## Inputs and outputs\n\n{_ports(inspection)}",
        f"## Activations\n\n{_activations(inspection)}",
    ]
    if parity is not None:
        parts += [f"## Proof\n\n{_proof(parity)}", f"Compare again:\n\n```sh\n{command}\n```"]
    inputs = ", ".join(f'"{name}": {re.sub(r"[^0-9A-Za-z_]", "_", name)}' for name in inspection.inputs)
    parts += [
        "## Use\n\n```python\nimport onnxruntime\n\n"
        f'session = onnxruntime.InferenceSession("{path.name}")\noutputs = session.run(None, {{{inputs}}})\n```'
    ]
    return "\n\n".join(parts) + "\n"


def _verdict(parity: ParityReport | None) -> str:
    if parity is None:
        return "It was not compared."
    versions = ", ".join(f"{name} {version}" for name, version in sorted(parity.versions.items()))
    verdict = "passed" if parity.passed else "FAILED"
    return (
        f"The comparison {verdict}: {count_of(len(parity.rows), 'comparison')}, the largest error "
        f"{figure(parity.largest_error) or 'not finite'} in units of the largest output ({parity.provider}, "
        f"{parity.dtype}; {versions})."
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(cell_text, line)) + " |" for line in lines)


def _ports(inspection: FileInspection) -> str:
    rows = [
        (name, kind, dtype, ", ".join("any" if size is None else str(size) for size in shape))
        for kind, ports in (("input", inspection.inputs), ("output", inspection.outputs))
        for name, (dtype, shape) in ports.items()
    ]
    return _table(("name", "", "type", "shape"), rows)


def _activations(inspection: FileInspection) -> str:
    rows = [(name, str(count)) for name, count in inspection.activations.items()]
    return _table(("activation", "calls"), rows) if rows else "None that is known."


def _proof(parity: ParityReport) -> str:
    """Return a line for each output: on how many families of inputs it was compared, and where it is furthest off."""
    rows = []
    for output in dict.fromkeys(row.output for row in parity.rows if row.limit is not None):
        compared = [row for row in parity.rows if row.output == output and row.limit is not None]
        worst = max(compared, key=lambda row: row.excess)
        verdict = "ok" if all(row.passed for row in compared) else "FAILED"
        label = output or "activations alone"
        error = "not finite" if worst.nonfinite else figure(worst.error)
        rows.append((label, str(len(compared)), worst.inputs, error, figure(worst.limit), verdict))
    return _table(("output", "comparisons", "worst on", "error", "limit", "verdict"), rows)
