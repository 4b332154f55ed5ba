"""Curvature as pure functions: statistics of an activation's input, and what can be learnt of the loss's Hessian."""

from typing import TYPE_CHECKING, Any

from lit_gelu.curvature.activation.call_sites import WatchableSites, watchable_sites
from lit_gelu.curvature.activation.dead_units import DeadUnitWindow
from lit_gelu.curvature.activation.gaussian_prediction import PREDICTED, GaussianPrediction
from lit_gelu.curvature.activation.histograms import HistogramBins
from lit_gelu.curvature.activation.recorder import ActivationRecorder, WatchedCall
from lit_gelu.curvature.activation.rows import count_rows, draw_rows, take_rows
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
from lit_gelu.curvature.errors import CurvatureArgumentError
from lit_gelu.curvature.jump import jump_sums, relative_jump
from lit_gelu.curvature.loss import (
    CriticalSharpness,
    DirectionalCurvature,
    Eigenpair,
    GaussNewtonOperator,
    HessianOperator,
    LinearOperator,
    LossCurvatureError,
    LossProbe,
    MatrixOperator,
    MemoryBudgetError,
    NonFiniteCurvatureError,
    ParameterLayout,
    ParameterOperator,
    SpectralDensity,
    TraceEstimate,
    critical_sharpness,
    curvature_along,
    directional_curvature,
    displaced,
    extreme_eigenvalues,
    gauss_newton_operator,
    hessian_operator,
    hutchinson_trace,
    loss_and_gradient,
    mean_loss,
    module_layout,
    normal,
    rademacher,
    spectral_density,
    symmetry_error,
    top_eigenpairs,
)
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
    "CriticalSharpness",
    "CurvatureArgumentError",
    "DeadUnitWindow",
    "DirectionalCurvature",
    "Eigenpair",
    "GaussNewtonOperator",
    "GaussianPrediction",
    "HessianOperator",
    "HistogramBins",
    "LinearOperator",
    "LossCurvatureError",
    "LossProbe",
    "MatrixOperator",
    "MemoryBudgetError",
    "NonFiniteCurvatureError",
    "ParameterLayout",
    "ParameterOperator",
    "SpectralDensity",
    "TraceEstimate",
    "WatchableSites",
    "WatchedCall",
    "accumulation_dtype",
    "activation_statistics",
    "activation_sums",
    "count_rows",
    "critical_sharpness",
    "curvature_along",
    "directional_curvature",
    "displaced",
    "draw_rows",
    "evaluation_sandbox",
    "extreme_eigenvalues",
    "gauss_newton_operator",
    "hessian_operator",
    "hutchinson_trace",
    "jump_sums",
    "loss_and_gradient",
    "mean_loss",
    "module_layout",
    "normal",
    "rademacher",
    "relative_jump",
    "spectral_density",
    "statistics_by_site",
    "statistics_from_sums",
    "symmetry_error",
    "take_rows",
    "top_eigenpairs",
    "watchable_sites",
]


def __getattr__(name: str) -> Any:
    """Import the metric when it is first used: torchmetrics takes a second to load."""
    if name == "ActivationStatistics":
        from lit_gelu.curvature.activation.metric import ActivationStatistics

        return ActivationStatistics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
