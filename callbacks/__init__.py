"""Lightning callbacks: thin shells over `lit_gelu.surgery` and `lit_gelu.curvature`."""

from lit_gelu.callbacks.activation_curvature_monitor import ActivationCurvatureMonitor
from lit_gelu.callbacks.activation_swap import ActivationSwap
from lit_gelu.callbacks.announcement import ActivationSwapListener
from lit_gelu.callbacks.errors import CallbackArgumentError, NoActivationError, NoLoggerError

__all__ = [
    "ActivationCurvatureMonitor",
    "ActivationSwap",
    "ActivationSwapListener",
    "CallbackArgumentError",
    "NoActivationError",
    "NoLoggerError",
]
