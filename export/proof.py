"""The proof beside the file: a parity report as files, and in the ONNX file itself what it said."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from lit_gelu.errors import ArgumentError
from lit_gelu.export.metadata import PREFIX, metadata_of
from lit_gelu.export.parity.report import ParityReport
from lit_gelu.files import write_atomically

SUFFIXES: Mapping[str, str] = {"json": ".parity.json", "markdown": ".parity.md", "html": ".parity.html"}


def write_proof(
    report: ParityReport, path: str | os.PathLike[str], formats: Sequence[str] = ("json", "markdown", "html")
) -> dict[str, Path]:
    """Write a parity report beside its file, and note in the file's metadata what it said.

    No path of this machine is in the reports. The file is replaced by a copy in one rename; weights in a file of their
    own stay where they are.

    Args:
        report: What `lit_gelu.export.check_parity` found.
        path: The file.
        formats: ``json``, ``markdown`` and ``html``, in any number.

    Returns:
        Where each format's report is.

    Raises:
        ArgumentError: If a format does not exist.
        ModelFileError: If the file is missing or damaged, or `lit_gelu.export.export_onnx` did not write it.
        UnwritablePathError: If a file cannot be written.

    Example:
        >>> import tempfile, torch
        >>> from lit_gelu.export import check_parity, export_onnx
        >>> path = Path(tempfile.mkdtemp()) / "gelu.onnx"
        >>> _ = export_onnx(torch.nn.GELU(), path, torch.zeros(2, 3))
        >>> written = write_proof(check_parity(torch.nn.GELU(), path), path, ["json"])
        >>> written["json"].name
        'gelu.parity.json'
    """
    unknown = [name for name in formats if name not in SUFFIXES]
    if unknown:
        raise ArgumentError(f"Unknown format {unknown[0]!r} of a report. Accepted: {', '.join(SUFFIXES)}.")
    path = Path(path)
    metadata_of(path)  # refuses a file that is missing, damaged or of others, which is not changed
    if Path(report.path).name != path.name:
        raise ArgumentError(f"The report is of {report.path!r}, and no proof of {str(path)!r}. Compare that file.")
    report = replace(report, path=path.name)
    texts = {name: getattr(report, f"to_{name}")().rstrip() + "\n" for name in formats}
    written = {name: path.with_name(f"{path.stem}{SUFFIXES[name]}") for name in formats}
    for name, target in written.items():
        with write_atomically(target) as temporary:
            temporary.write_text(texts[name], encoding="utf-8", newline="\n")
    record: dict[str, Any] = {
        "passed": report.passed,
        "max_relative_error": report.largest_error,
        "floor": report.floor,
        "provider": report.provider,
        "onnxruntime": report.versions.get("onnxruntime", ""),
    }
    if "json" in formats:
        record["report_sha256"] = hashlib.sha256(texts["json"].encode()).hexdigest()
    model = onnx.load(path, load_external_data=False)
    properties = {entry.key: entry.value for entry in model.metadata_props}
    onnx.helper.set_model_props(model, {**properties, f"{PREFIX}parity": json.dumps(record, sort_keys=True)})
    with write_atomically(path) as temporary:
        temporary.write_bytes(model.SerializeToString())
    return written
