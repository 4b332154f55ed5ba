"""ONNX files: lowering, writing, running, and the proof that they compute what the module computes.

Its names are imported when they are first used: to run a file, onnxruntime, onnx and numpy are enough.
"""

import importlib
from typing import TYPE_CHECKING, Any

from lit_gelu.errors import ArgumentError, ExportError, ModelFileError, ModelInputError, ParityError, ProviderError

if TYPE_CHECKING:
    from lit_gelu.export.exporter import ExportReport, export_onnx
    from lit_gelu.export.inspection import FileInspection, inspect_onnx
    from lit_gelu.export.lowering.spellings import recognise
    from lit_gelu.export.parity.check import check_parity
    from lit_gelu.export.parity.report import ParityReport, ParityRow
    from lit_gelu.export.proof import write_proof
    from lit_gelu.export.runtime import CpuFallbackWarning, OnnxPredictor, Placement
    from lit_gelu.export.runtime.bench import BenchReport, bench

_ROOMS = {
    "exporter": ("ExportReport", "export_onnx"),
    "inspection": ("FileInspection", "inspect_onnx"),
    "lowering.spellings": ("recognise",),
    "parity.check": ("check_parity",),
    "parity.report": ("ParityReport", "ParityRow"),
    "proof": ("write_proof",),
    "runtime": ("CpuFallbackWarning", "OnnxPredictor", "Placement"),
    "runtime.bench": ("BenchReport", "bench"),
}
ExportOptionError = ArgumentError
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "BenchReport", "CpuFallbackWarning", "ExportError", "ExportOptionError", "ExportReport", "FileInspection",
    "ModelFileError", "ModelInputError", "OnnxPredictor", "ParityError", "ParityReport",
    "ParityRow", "Placement", "ProviderError", "bench", "check_parity", "export_onnx", "inspect_onnx",
    "recognise", "write_proof",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: torch and onnx take seconds to load, and may be missing."""
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_ROOM_OF[name]}"), name)
    globals()[name] = value
    return value
