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
from lit_gelu.export.runtime import OnnxPredictor

__all__ = [
    "ExportError",
    "ExportOptionError",
    "ExportReport",
    "ModelFileError",
    "ModelInputError",
    "OnnxPredictor",
    "ParityError",
    "ProviderError",
    "export_onnx",
]
