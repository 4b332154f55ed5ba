"""Curvature: statistics of an activation's input, and what can be learnt of the loss's Hessian."""

from typing import TYPE_CHECKING, Any

from lit_gelu.curvature import loss
from lit_gelu.curvature.activation.statistics import EPSILON, STATISTICS, activation_statistics
from lit_gelu.curvature.activation_measurement import DeadUnitWindow
from lit_gelu.curvature.loss import *  # noqa: F403 - all that is there is here too
from lit_gelu.curvature.settings import ProductBudget
from lit_gelu.sandbox import evaluation_sandbox

if TYPE_CHECKING:
    from lit_gelu.curvature.activation.metric import ActivationStatistics

__all__ = [
    "EPSILON", "STATISTICS", "ActivationStatistics", "DeadUnitWindow", "ProductBudget", "activation_statistics",
    "evaluation_sandbox",
]  # fmt: skip
__all__ += loss.__all__


def __getattr__(name: str) -> Any:
    """Import the metric when it is first used: torchmetrics takes a second to load."""
    if name == "ActivationStatistics":
        from lit_gelu.curvature.activation.metric import ActivationStatistics

        return ActivationStatistics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
