"""Curvature of the loss: the Hessian as an operator, and what can be learnt from its products with vectors."""

from lit_gelu.curvature.loss.linear_operator import LinearOperator, MatrixOperator
from lit_gelu.curvature.loss.operators import DirectionalCurvature, ParameterOperator, curvature_along, hessian_operator
from lit_gelu.curvature.loss.parameters import ParameterLayout, module_layout
from lit_gelu.curvature.loss.spectrum import Eigenpair, SpectralDensity, extreme_eigenvalues, spectral_density
from lit_gelu.curvature.loss.trace import TraceEstimate, hutchinson_trace
from lit_gelu.curvature.probe.loss_probe import LossProbe

__all__ = [
    "DirectionalCurvature", "Eigenpair", "LinearOperator", "LossProbe", "MatrixOperator", "ParameterLayout",
    "ParameterOperator", "SpectralDensity", "TraceEstimate", "curvature_along", "extreme_eigenvalues",
    "hessian_operator", "hutchinson_trace", "module_layout", "spectral_density",
]  # fmt: skip
