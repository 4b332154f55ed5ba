"""Exported files and their proofs, as far as the files themselves and what lies beside them say."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lit_gelu.errors import LitGeluError
from lit_gelu.report.content import ExportedFile, Proof

if TYPE_CHECKING:
    from lit_gelu.export.metadata import FileMetadata


def exported_file(path: str | os.PathLike[str]) -> ExportedFile:
    """Say what an ONNX file is and whether it was compared with PyTorch; nothing is run.

    Args:
        path: The file, of lit-gelu or of another exporter.

    Returns:
        What is known of it; a file that cannot be read says why in ``trouble``.
    """
    from lit_gelu.export.inspection import inspect_onnx

    file = Path(path)
    try:
        found = inspect_onnx(file)
    except LitGeluError as error:
        size = file.stat().st_size if file.is_file() else 0
        return ExportedFile(name=file.name, size=size, proof="unreadable", trouble=str(error))
    made = ExportedFile(name=file.name, size=found.size, opset=found.opsets.get("", 0), activations=found.activations)
    return made if found.metadata is None else _with_proof(made, found.metadata, file)


def _with_proof(made: ExportedFile, metadata: "FileMetadata", file: Path) -> ExportedFile:
    """Return a file with what it says of how it was written and compared."""
    from lit_gelu.export.proof import SUFFIXES

    record = metadata.parity
    passed, error = record.get("passed"), record.get("max_relative_error")
    proof: Proof = "passed" if passed is True else "failed" if passed is False else "none"
    beside = file.with_name(f"{file.stem}{SUFFIXES['json']}")
    there = beside.is_file()
    named = record.get("report_sha256")
    fits = _digest(beside) == named if there and isinstance(named, str) else None
    return replace(
        made,
        dtype=str(metadata.dtype or ""),
        approximate=metadata.approximate,
        target=metadata.target,
        proof=proof,
        largest_error=float(error) if isinstance(error, float) else None,
        provider=str(record.get("provider", ""))[:200],
        report=beside.name if there else "",
        report_fits=fits,
    )


def _digest(path: Path) -> str:
    """Return a file's SHA-256; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
