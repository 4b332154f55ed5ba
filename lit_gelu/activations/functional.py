"""Activations as pure functions: each with its first and second derivative in closed form, one family per file.

For every name ``NAME(x, **parameters)`` is the function and ``NAME_derivative(x, order, **parameters)`` its derivative
of order 1 or 2 with respect to ``x``; gated functions, which halve a dimension, have none. They are the reference for
values: accuracy comes first, tails, infinities and 16-bit floats included (bounds and measured errors:
``docs/numerics.md``). Autograd in both modes, ``torch.func`` and ``torch.compile`` go through them.
"""

from lit_gelu.activations.families.cdf_linear import cdf_linear, cdf_linear_derivative
from lit_gelu.activations.families.clipped_gelu import clipped_gelu, clipped_gelu_derivative
from lit_gelu.activations.families.elu import celu, celu_derivative, elu, elu_derivative, selu, selu_derivative
from lit_gelu.activations.families.gated import geglu, glu, reglu, swiglu
from lit_gelu.activations.families.gaussian_gelu import gaussian_gelu, gaussian_gelu_derivative
from lit_gelu.activations.families.gelu import gelu, gelu_derivative
from lit_gelu.activations.families.hard_mish import hard_mish, hard_mish_derivative
from lit_gelu.activations.families.hard_swish import hard_swish, hard_swish_derivative
from lit_gelu.activations.families.mega_laplace import mega_laplace, mega_laplace_derivative
from lit_gelu.activations.families.mish import mish, mish_derivative
from lit_gelu.activations.families.piecewise_linear import (
    identity,
    identity_derivative,
    leaky_relu,
    leaky_relu_derivative,
    prelu,
    prelu_derivative,
    relu,
    relu6,
    relu6_derivative,
    relu_derivative,
)
from lit_gelu.activations.families.sigmoid import (
    hard_sigmoid,
    hard_sigmoid_derivative,
    sigmoid,
    sigmoid_derivative,
    tanh,
    tanh_derivative,
)
from lit_gelu.activations.families.softplus import log_sigmoid, log_sigmoid_derivative, softplus, softplus_derivative
from lit_gelu.activations.families.sqrt_softplus import sqrt_softplus, sqrt_softplus_derivative
from lit_gelu.activations.families.squared_relu import relu2, relu2_derivative
from lit_gelu.activations.families.swish import silu, silu_derivative, swish, swish_derivative
from lit_gelu.activations.families.xielu import xielu, xielu_derivative
from lit_gelu.activations.families.zero_identity_map import zero_identity_map, zero_identity_map_derivative
from lit_gelu.activations.naming.scalar import derivative

__all__ = [
    "cdf_linear",
    "cdf_linear_derivative",
    "celu",
    "celu_derivative",
    "clipped_gelu",
    "clipped_gelu_derivative",
    "derivative",
    "elu",
    "elu_derivative",
    "gaussian_gelu",
    "gaussian_gelu_derivative",
    "geglu",
    "gelu",
    "gelu_derivative",
    "glu",
    "hard_mish",
    "hard_mish_derivative",
    "hard_sigmoid",
    "hard_sigmoid_derivative",
    "hard_swish",
    "hard_swish_derivative",
    "identity",
    "identity_derivative",
    "leaky_relu",
    "leaky_relu_derivative",
    "log_sigmoid",
    "log_sigmoid_derivative",
    "mega_laplace",
    "mega_laplace_derivative",
    "mish",
    "mish_derivative",
    "prelu",
    "prelu_derivative",
    "reglu",
    "relu",
    "relu2",
    "relu2_derivative",
    "relu6",
    "relu6_derivative",
    "relu_derivative",
    "selu",
    "selu_derivative",
    "sigmoid",
    "sigmoid_derivative",
    "silu",
    "silu_derivative",
    "softplus",
    "softplus_derivative",
    "sqrt_softplus",
    "sqrt_softplus_derivative",
    "swiglu",
    "swish",
    "swish_derivative",
    "tanh",
    "tanh_derivative",
    "xielu",
    "xielu_derivative",
    "zero_identity_map",
    "zero_identity_map_derivative",
]
