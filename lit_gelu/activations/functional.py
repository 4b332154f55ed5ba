"""Activations as pure functions, one family per file; ``derivative(spec, x, order)`` differentiates any of them.

``NAME(x, **parameters)`` takes ``x`` of any shape in float16, bfloat16, float32 or float64, and returns a tensor like
it; anything else raises `ArgumentError`. Gated functions halve a dimension. Accuracy comes first, tails,
infinities (where they have their limits) and 16-bit floats included (bounds and measured errors: ``docs/numerics.md``).
Autograd in both modes, ``torch.func`` and ``torch.compile`` go through them.
"""

from lit_gelu.activations.families.cdf_linear import cdf_linear
from lit_gelu.activations.families.clipped_gelu import clipped_gelu
from lit_gelu.activations.families.elu import celu, elu, selu
from lit_gelu.activations.families.gated import geglu, glu, reglu, swiglu
from lit_gelu.activations.families.gaussian_gelu import gaussian_gelu
from lit_gelu.activations.families.gelu import gelu
from lit_gelu.activations.families.mega_laplace import mega_laplace
from lit_gelu.activations.families.mish import mish
from lit_gelu.activations.families.piecewise_linear import identity, leaky_relu, prelu, relu, relu6
from lit_gelu.activations.families.piecewise_quadratic import hard_mish, hard_swish, relu2
from lit_gelu.activations.families.sigmoid import hard_sigmoid, sigmoid, tanh
from lit_gelu.activations.families.softplus import log_sigmoid, softplus, sqrt_softplus
from lit_gelu.activations.families.swish import silu, swish
from lit_gelu.activations.families.xielu import xielu
from lit_gelu.activations.families.zero_identity_map import zero_identity_map
from lit_gelu.activations.naming.scalar import derivative

__all__ = [
    "cdf_linear", "celu", "clipped_gelu", "derivative", "elu", "gaussian_gelu", "geglu", "gelu", "glu", "hard_mish",
    "hard_sigmoid", "hard_swish", "identity", "leaky_relu", "log_sigmoid", "mega_laplace", "mish", "prelu", "reglu",
    "relu", "relu2", "relu6", "selu", "sigmoid", "silu", "softplus", "sqrt_softplus", "swiglu", "swish", "tanh",
    "xielu", "zero_identity_map",
]  # fmt: skip
