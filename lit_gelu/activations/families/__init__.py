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
from lit_gelu.activations.naming.entry import ActivationEntry, ModuleForm
from lit_gelu.activations.numerics.arguments import DerivativeOf

_RELU2, _HARD_SWISH, _HARD_MISH = piecewise_quadratic.ENTRIES
_ROWS = (  # in the order in which pages list them
    *(*piecewise_linear.ENTRIES, _RELU2, *elu.ENTRIES, *gelu.ENTRIES, *gaussian_gelu.ENTRIES),
    *(*zero_identity_map.ENTRIES, *swish.ENTRIES, *cdf_linear.ENTRIES, _HARD_SWISH, *mish.ENTRIES, *sigmoid.ENTRIES),
    *(*softplus.ENTRIES[:2], *clipped_gelu.ENTRIES, _HARD_MISH, *mega_laplace.ENTRIES, *softplus.ENTRIES[2:]),
    *(*xielu.ENTRIES, *gated.ENTRIES),
)


def _completed(row: ActivationEntry) -> ActivationEntry:
    """Return a row with what it leaves out: the derivatives of a joint form that is exact, the class that it builds."""
    derivative = row.derivative or (row.joint and DerivativeOf(row.joint))
    modules = row.modules
    if not modules and row.preset is None and isinstance(row.build, type):
        modules = (ModuleForm(row.build),)
    # `tried` because torch's own modules check few of their arguments.
    by = f"lit-gelu {version('lit-gelu')}"
    return replace(row, derivative=derivative, modules=modules, tried=True, registered_by=by)


ENTRIES = tuple(map(_completed, _ROWS))
COMPOSED = (mish.COMPOSED,)
"""What to compute instead of functions of torch that cannot be differentiated twice."""

__all__ = ["COMPOSED", "ENTRIES"]
