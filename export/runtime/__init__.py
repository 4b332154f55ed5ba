"""Running an exported file with onnxruntime: sessions that run where they were asked to, tuned and measured."""

from lit_gelu.export.runtime.placement import PlacedNode, Placement
from lit_gelu.export.runtime.predictor import OnnxPredictor
from lit_gelu.export.runtime.providers import CPU, CUDA, TENSORRT, Provider, default_providers, provider_name
from lit_gelu.export.runtime.session import CpuFallbackWarning, open_session

__all__ = [
    "CPU", "CUDA", "TENSORRT", "CpuFallbackWarning", "OnnxPredictor", "PlacedNode", "Placement", "Provider",
    "default_providers", "open_session", "provider_name",
]  # fmt: skip
