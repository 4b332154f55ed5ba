"""Curvature as pure functions: statistics of an activation's input, and what can be learnt of the loss's Hessian."""

from typing import TYPE_CHECKING, Any

from lit_gelu.curvature import loss
from lit_gelu.curvature.activation.call_sites import WatchableSites, watchable_sites
from lit_gelu.curvature.activation.dead_units import DeadUnitWindow
from lit_gelu.curvature.activation.gaussian_prediction import PREDICTED, GaussianPrediction
from lit_gelu.curvature.activation.recorder import ActivationRecorder, WatchedCall
from lit_gelu.curvature.activation.statistics import (
    EPSILON,
    STATISTICS,
    SUMS,
    accumulation_dtype,
    activation_statistics,
    activation_sums,
    statistics_by_site,
    statistics_from_sums,
)
from lit_gelu.curvature.loss import *  # noqa: F403 - all that is there is here too
from lit_gelu.sandbox import evaluation_sandbox

if TYPE_CHECKING:
    from lit_gelu.curvature.activation.metric import ActivationStatistics

__all__ = [
    "EPSILON",
    "PREDICTED",
    "STATISTICS",
    "SUMS",
    "ActivationRecorder",
    "ActivationStatistics",
    "DeadUnitWindow",
    "GaussianPrediction",
    "WatchableSites",
    "WatchedCall",
    "accumulation_dtype",
    "activation_statistics",
    "activation_sums",
    "evaluation_sandbox",
    "statistics_by_site",
    "statistics_from_sums",
    "watchable_sites",
]
__all__ += loss.__all__


def __getattr__(name: str) -> Any:
    """Import the metric when it is first used: torchmetrics takes a second to load."""
    if name == "ActivationStatistics":
        from lit_gelu.curvature.activation.metric import ActivationStatistics

        return ActivationStatistics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
