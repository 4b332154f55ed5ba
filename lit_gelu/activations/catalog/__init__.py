"""The activations of this package: one file a family, named as in ``functional/`` and ``modules/``."""

from lit_gelu.activations.catalog import (
    elu,
    gaussian_gelu,
    gelu,
    hard_swish,
    mish,
    piecewise_linear,
    sigmoid,
    softplus,
    squared_relu,
    swish,
    zero_identity_map,
)

ENTRIES = (
    *piecewise_linear.ENTRIES,
    *squared_relu.ENTRIES,
    *elu.ENTRIES,
    *gelu.ENTRIES,
    *gaussian_gelu.ENTRIES,
    *zero_identity_map.ENTRIES,
    *swish.ENTRIES,
    *hard_swish.ENTRIES,
    *mish.ENTRIES,
    *sigmoid.ENTRIES,
    *softplus.ENTRIES,
)

__all__ = ["ENTRIES"]
