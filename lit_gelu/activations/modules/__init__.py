"""The modules that torch does not have; where torch has the function, the registry builds torch's own module."""

from lit_gelu.activations.modules.cdf_linear import CDFLinear
from lit_gelu.activations.modules.channels import ChannelModule
from lit_gelu.activations.modules.function import FunctionActivation
from lit_gelu.activations.modules.gated import GEGLU, ReGLU, SwiGLU
from lit_gelu.activations.modules.gated_ffn import GatedFFN
from lit_gelu.activations.modules.gaussian_gelu import GaussianGELU
from lit_gelu.activations.modules.gelu import SigmoidGELU
from lit_gelu.activations.modules.identity import Identity
from lit_gelu.activations.modules.squared_relu import SquaredReLU
from lit_gelu.activations.modules.swish import Swish
from lit_gelu.activations.modules.zero_identity_map import ZeroIdentityMap

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
