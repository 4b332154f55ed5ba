"""int8 files: static quantisation calibrated on data, and a proof of its own."""

from lit_gelu.export.quantization.cost import check_quantized
from lit_gelu.export.quantization.int8_metadata import QuantizationRecord, is_quantized
from lit_gelu.export.quantization.quantize import QuantizationResult, quantize_onnx
from lit_gelu.export.quantization.report import QuantizationReport

__all__ = [
    "QuantizationRecord",
    "QuantizationReport",
    "QuantizationResult",
    "check_quantized",
    "is_quantized",
    "quantize_onnx",
]
