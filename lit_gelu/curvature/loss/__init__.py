"""Curvature of the loss: the Hessian and the Gauss-Newton matrix as operators, and what can be learnt from products."""

from lit_gelu.curvature.errors import LossCurvatureError, MemoryBudgetError, NonFiniteCurvatureError
from lit_gelu.curvature.loss.critical_sharpness import CriticalSharpness, critical_sharpness
from lit_gelu.curvature.loss.density import SpectralDensity, spectral_density
from lit_gelu.curvature.loss.directional import DirectionalCurvature, curvature_along, directional_curvature
from lit_gelu.curvature.loss.eigenpairs import Eigenpair, extreme_eigenvalues, top_eigenpairs
from lit_gelu.curvature.loss.evaluation import loss_and_gradient, mean_loss
from lit_gelu.curvature.loss.gauss_newton import GaussNewtonOperator, gauss_newton_operator
from lit_gelu.curvature.loss.hessian import HessianOperator, hessian_operator
from lit_gelu.curvature.loss.layout import ParameterLayout, displaced, module_layout
from lit_gelu.curvature.loss.linear_operator import LinearOperator, MatrixOperator, symmetry_error
from lit_gelu.curvature.loss.parameter_operator import ParameterOperator
from lit_gelu.curvature.loss.trace import TraceEstimate, hutchinson_trace
from lit_gelu.curvature.loss.vectors import normal, rademacher
from lit_gelu.curvature.probe.loss_probe import LossProbe

__all__ = [
    "CriticalSharpness",
    "DirectionalCurvature",
    "Eigenpair",
    "GaussNewtonOperator",
    "HessianOperator",
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
    "critical_sharpness",
    "curvature_along",
    "directional_curvature",
    "displaced",
    "extreme_eigenvalues",
    "gauss_newton_operator",
    "hessian_operator",
    "hutchinson_trace",
    "loss_and_gradient",
    "mean_loss",
    "module_layout",
    "normal",
    "rademacher",
    "spectral_density",
    "symmetry_error",
    "top_eigenpairs",
]
