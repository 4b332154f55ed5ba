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
    mega_laplace,
    mish,
    piecewise_linear,
    piecewise_quadratic,
    sigmoid,
    softplus,
    swish,
    xielu,
    zero_identity_map,
)

_RELU2, _HARD_SWISH, _HARD_MISH = piecewise_quadratic.ENTRIES
_ROWS = (  # in the order in which pages list them
    *(*piecewise_linear.ENTRIES, _RELU2, *elu.ENTRIES, *gelu.ENTRIES, *gaussian_gelu.ENTRIES),
    *(*zero_identity_map.ENTRIES, *swish.ENTRIES, *cdf_linear.ENTRIES, _HARD_SWISH, *mish.ENTRIES, *sigmoid.ENTRIES),
    *(*softplus.ENTRIES[:2], *clipped_gelu.ENTRIES, _HARD_MISH, *mega_laplace.ENTRIES, *softplus.ENTRIES[2:]),
    *(*xielu.ENTRIES, *gated.ENTRIES),
)
# `tried` because torch's own modules check few of their arguments.
ENTRIES = tuple(replace(row, tried=True, registered_by=f"lit-gelu {version('lit-gelu')}") for row in _ROWS)
COMPOSED = (mish.COMPOSED,)
"""What to compute instead of functions of torch that cannot be differentiated twice."""

__all__ = ["COMPOSED", "ENTRIES"]
