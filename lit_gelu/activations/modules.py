"""The modules that torch does not have; where torch has the function, the registry builds torch's own module."""

from lit_gelu.activations.families.cdf_linear import CDFLinear
from lit_gelu.activations.families.gated import GEGLU, GatedFFN, ReGLU, SwiGLU
from lit_gelu.activations.families.gaussian_gelu import GaussianGELU
from lit_gelu.activations.families.gelu import SigmoidGELU
from lit_gelu.activations.families.piecewise_linear import Identity
from lit_gelu.activations.families.piecewise_quadratic import SquaredReLU
from lit_gelu.activations.families.swish import Swish
from lit_gelu.activations.families.zero_identity_map import ZeroIdentityMap
from lit_gelu.activations.naming.forms import FunctionActivation
from lit_gelu.activations.numerics.channels import ChannelModule

__all__ = [
    "GEGLU",
    "CDFLinear",
    "ChannelModule",
    "FunctionActivation",
    "GatedFFN",
    "GaussianGELU",
    "Identity",
    "ReGLU",
    "SigmoidGELU",
    "SquaredReLU",
    "SwiGLU",
    "Swish",
    "ZeroIdentityMap",
]
