"""Running an exported file with onnxruntime: sessions that run where they were asked to, and are measured."""

from lit_gelu.export.runtime.placement import PlacedNode, Placement
from lit_gelu.export.runtime.predictor import OnnxPredictor
from lit_gelu.export.runtime.session import (
    CPU,
    CUDA,
    TENSORRT,
    CpuFallbackWarning,
    Provider,
    default_providers,
    open_session,
    provider_name,
)

__all__ = [
    "CPU", "CUDA", "TENSORRT", "CpuFallbackWarning", "OnnxPredictor", "PlacedNode", "Placement", "Provider",
    "default_providers", "open_session", "provider_name",
]  # fmt: skip
