"""Lightning callbacks: thin shells over `lit_gelu.surgery` and `lit_gelu.curvature`."""

from lit_gelu.callbacks.activation_curvature import ActivationCurvatureMonitor
from lit_gelu.callbacks.exact_resume import ExactResume
from lit_gelu.callbacks.fused_activations import FusedActivations
from lit_gelu.callbacks.loading import load_from_checkpoint
from lit_gelu.callbacks.loss_curvature import LossCurvatureMonitor
from lit_gelu.callbacks.onnx_export import OnnxExport
from lit_gelu.callbacks.run_report import RunReport
from lit_gelu.callbacks.swap.activation_swap import ActivationSwap
from lit_gelu.callbacks.swap.run import ActivationSwapListener
from lit_gelu.errors import ArgumentError, UnsupportedRunError

__all__ = [
    "ActivationCurvatureMonitor", "ActivationSwap", "ActivationSwapListener", "ArgumentError", "ExactResume",
    "FusedActivations", "LossCurvatureMonitor", "OnnxExport", "RunReport", "UnsupportedRunError",
    "load_from_checkpoint",
]  # fmt: skip
