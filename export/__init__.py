"""ONNX files: lowering, writing, running, and the proof that they compute what the module computes."""

from lit_gelu.export.errors import (
    ExportError,
    ExportOptionError,
    ModelFileError,
    ModelInputError,
    ParityError,
    ProviderError,
)
from lit_gelu.export.exporter import ExportReport, export_onnx
from lit_gelu.export.parity import check_parity
from lit_gelu.export.parity_report import ParityReport, ParityRow
from lit_gelu.export.runtime import OnnxPredictor

__all__ = [
    "ExportError",
    "ExportOptionError",
    "ExportReport",
    "ModelFileError",
    "ModelInputError",
    "OnnxPredictor",
    "ParityError",
    "ParityReport",
    "ParityRow",
    "ProviderError",
    "check_parity",
    "export_onnx",
]
