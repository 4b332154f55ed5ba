"""ONNX files: lowering, writing, running, and the proof that they compute what the module computes."""

from lit_gelu.export.errors import (
    ExportError,
    ExportOptionError,
    ModelFileError,
    ModelInputError,
    ProviderError,
)
from lit_gelu.export.exporter import ExportReport, export_onnx
from lit_gelu.export.inspection import FileInspection, inspect_onnx
from lit_gelu.export.mixin import OnnxExportMixin
from lit_gelu.export.parity import ParityReport, ParityRow, check_parity
from lit_gelu.export.parity.report import ParityError
from lit_gelu.export.proof import write_proof
from lit_gelu.export.runtime import CpuFallbackWarning, OnnxPredictor, Placement
from lit_gelu.export.runtime.bench import BenchReport, bench
from lit_gelu.export.runtime.tuning import TuningReport, tune

__all__ = [
    "BenchReport",
    "CpuFallbackWarning",
    "ExportError",
    "ExportOptionError",
    "ExportReport",
    "FileInspection",
    "ModelFileError",
    "ModelInputError",
    "OnnxExportMixin",
    "OnnxPredictor",
    "ParityError",
    "ParityReport",
    "ParityRow",
    "Placement",
    "ProviderError",
    "TuningReport",
    "bench",
    "check_parity",
    "export_onnx",
    "inspect_onnx",
    "tune",
    "write_proof",
]
