"""What activations make of normally distributed pre-activations.

Sources of the closed forms: Stein's identity ``E (x - m) g = s^2 E g'`` (Stein 1981, The Annals of Statistics 9),
products of Gaussian densities, which are Gaussian again, and for ``E Phi^2`` Owen 1956 (The Annals of Mathematical
Statistics 27).
"""

from lit_gelu.activations.gaussian.dispatch import gaussian_moments, scalar_function
from lit_gelu.activations.gaussian.quadrature import normal_rule
from lit_gelu.activations.numerics.moments import GaussianMoments

__all__ = ["GaussianMoments", "gaussian_moments", "normal_rule", "scalar_function"]
