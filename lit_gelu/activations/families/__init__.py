"""The activations of this package: one file a family, each holds all that is known of it."""

from dataclasses import replace
from importlib.metadata import version

from lit_gelu.activations.families import (
    cdf_linear,
    clipped_gelu,
    elu,
    gated,
    gaussian_gelu,
    gelu,
    hard_mish,
    hard_swish,
    mega_laplace,
    mish,
    piecewise_linear,
    sigmoid,
    softplus,
    sqrt_softplus,
    squared_relu,
    swish,
    xielu,
    zero_identity_map,
)

_ROWS = (
    *piecewise_linear.ENTRIES,
    *squared_relu.ENTRIES,
    *elu.ENTRIES,
    *gelu.ENTRIES,
    *gaussian_gelu.ENTRIES,
    *zero_identity_map.ENTRIES,
    *swish.ENTRIES,
    *cdf_linear.ENTRIES,
    *hard_swish.ENTRIES,
    *mish.ENTRIES,
    *sigmoid.ENTRIES,
    *softplus.ENTRIES,
    *clipped_gelu.ENTRIES,
    *hard_mish.ENTRIES,
    *mega_laplace.ENTRIES,
    *sqrt_softplus.ENTRIES,
    *xielu.ENTRIES,
    *gated.ENTRIES,
)
# `tried` because torch's own modules check few of their arguments.
ENTRIES = tuple(replace(row, tried=True, registered_by=f"lit-gelu {version('lit-gelu')}") for row in _ROWS)
COMPOSED = (mish.COMPOSED,)
"""What to compute instead of functions of torch that cannot be differentiated twice."""

__all__ = ["COMPOSED", "ENTRIES"]
