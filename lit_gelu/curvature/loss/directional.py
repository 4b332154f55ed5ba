"""Curvature along the update that the optimizer took."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_gelu.curvature.activation.statistics import accumulation_dtype
from lit_gelu.curvature.loss.operators import ParameterOperator
from lit_gelu.display import Displayed
from lit_gelu.errors import UnsupportedRunError


@dataclass(frozen=True, repr=False)
class DirectionalCurvature(Displayed):
    """How curved the loss is along an update u, which moves the parameters from theta to theta + u.

    Attributes:
        quadratic_form: ``u'Hu``, with H the Hessian at theta.
        curvature: ``u'Hu / u'u``, between the smallest and the largest eigenvalue of H.
        slope: ``g'u``, with g the gradient at theta; negative if the update descends.
        stability: ``u'Hu / (-2 g'u)``: at 1 or more, the quadratic model has the loss rise on this step. NaN without
            slope.
        gradient_change: ``||Hu|| / ||u||``, at most the largest ``|eigenvalue|``.
    """

    quadratic_form: float
    curvature: float
    slope: float
    stability: float
    gradient_change: float


def curvature_along(hessian: ParameterOperator, update: Tensor) -> DirectionalCurvature:
    """Measure the curvature along an update by one product with the Hessian before it, exactly.

    Source: the definitions are those of `DirectionalCurvature`.

    Args:
        hessian: The Hessian at theta, where the update begins.
        update: u, shape ``[size]``; it need not have been taken.

    Returns:
        The figures, as exact as the operator's products; NaN where they are divided by 0.

    Raises:
        ArgumentError: If the update has another shape.
        UnsupportedRunError: If the product is NaN or infinite.

    Example:
        >>> from lit_gelu.curvature.loss import hessian_operator
        >>> weight = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> with hessian_operator(lambda: (weight**3).sum(), {"weight": weight}) as hessian:
        ...     figures = curvature_along(hessian, torch.tensor([-0.1, 0.0]))
        >>> round(figures.curvature, 5), round(figures.slope, 5), round(figures.stability, 5)
        (6.0, -0.3, 0.1)
    """
    update = hessian.parameters.check(update, "The update")
    product = hessian(update)
    dtype = accumulation_dtype(update.device)
    pairs = ((update, product), (hessian.gradient, update), (update, update), (product, product))
    form, slope, length, moved = torch.stack([(a * b).sum(dtype=dtype) for a, b in pairs]).tolist()
    if not all(map(math.isfinite, (form, slope, length, moved))):
        raise UnsupportedRunError(
            f"u'Hu = {form}, g'u = {slope}, u'u = {length}: the loss or its gradient is not finite along the update. "
            "The learning rate may be too large."
        )
    return DirectionalCurvature(
        quadratic_form=form,
        curvature=form / length if length else math.nan,
        slope=slope,
        stability=form / (-2 * slope) if slope else math.nan,
        gradient_change=math.sqrt(moved / length) if length else math.nan,
    )
