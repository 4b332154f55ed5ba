"""int8 files: onnxruntime's static quantisation, calibrated on data, and a proof of its own."""

from lit_gelu.export.quantization.check import QuantizationReport, check_quantized
from lit_gelu.export.quantization.quantize import QuantizationRecord, QuantizationResult, is_quantized, quantize_onnx

__all__ = [
    "QuantizationRecord",
    "QuantizationReport",
    "QuantizationResult",
    "check_quantized",
    "is_quantized",
    "quantize_onnx",
]
