"""Curvature along the update that the optimizer took."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_gelu.curvature.activation.statistics import accumulation_dtype
from lit_gelu.curvature.errors import LossCurvatureError, NonFiniteCurvatureError
from lit_gelu.curvature.loss.evaluation import Closure, Reduce, loss_and_gradient, mean_loss
from lit_gelu.curvature.loss.layout import ParameterLayout
from lit_gelu.curvature.loss.parameter_operator import ParameterOperator
from lit_gelu.display import Displayed

DirectionalMethod = Literal["loss", "gradient", "loss_and_gradient"]
DIRECTIONAL_METHODS: tuple[str, ...] = ("loss", "gradient", "loss_and_gradient")


@dataclass(frozen=True, repr=False)
class DirectionalCurvature(Displayed):
    """How curved the loss is along an update u, which moved the parameters from theta to theta + u.

    Attributes:
        quadratic_form: ``u'Hu``, with H the Hessian at theta; `directional_curvature` estimates it from both ends of
            the update, where `curvature_along` takes a product with H.
        curvature: ``u'Hu / u'u``; between the smallest and the largest eigenvalue of H if it is by a product.
        slope: ``g'u``, with g the gradient at theta; negative if the update descends.
        stability: ``u'Hu / (-2 g'u)``, which is ``lr lambda_c / 2``: at 1 or more, the quadratic model has the loss
            rise on this step. NaN without slope.
        critical_sharpness: ``lambda_c = D'HD / g'D`` of the direction ``D = -u / lr``, the sharpness at which ``2 /
            lambda_c`` is the largest learning rate that does not raise the loss; ``None`` if no learning rate was
            given.
        gradient_change: ``||Hu|| / ||u||``, at most the largest ``|eigenvalue|``; estimated by
            ``||g(theta + u) - g(theta)|| / ||u||``, and ``None`` if no second gradient was taken.
    """

    quadratic_form: float
    curvature: float
    slope: float
    stability: float
    critical_sharpness: float | None
    gradient_change: float | None


def curvature_along(
    hessian: ParameterOperator, update: Tensor, *, learning_rate: float | None = None
) -> DirectionalCurvature:
    """Measure the curvature along an update by one product with the Hessian before it, exactly.

    Source: the definitions are those of `DirectionalCurvature`.

    Args:
        hessian: The Hessian at theta, where the update begins.
        update: u, shape ``[size]``; it need not have been taken.
        learning_rate: The step's, for ``critical_sharpness``.

    Returns:
        The figures, as exact as the operator's products; NaN where they are divided by 0.

    Raises:
        LossCurvatureError: If an argument is not accepted.
        NonFiniteCurvatureError: If the product is NaN or infinite.

    Example:
        >>> from lit_gelu.curvature.loss import hessian_operator
        >>> weight = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> with hessian_operator(lambda: (weight**3).sum(), {"weight": weight}) as hessian:
        ...     figures = curvature_along(hessian, torch.tensor([-0.1, 0.0]))
        >>> round(figures.curvature, 5), round(figures.slope, 5), round(figures.stability, 5)
        (6.0, -0.3, 0.1)
    """
    _check_learning_rate(learning_rate)
    update = hessian.parameters.check(update, "The update")
    # Neither the squares of a short update nor its product may vanish in its precision.
    largest = update.abs().max()
    direction = update / largest.clamp(min=torch.finfo(update.dtype).tiny)
    norm = _dot(direction, direction).sqrt()
    direction /= norm.clamp(min=1).to(direction)
    length = norm * largest
    product = hessian(direction)
    form, slope = _dot(product, direction) * length**2, _dot(hessian.gradient, direction) * length
    moved = _dot(product, product) * length**2
    return _figures(torch.stack([form, slope, length**2, moved]), learning_rate, has_change=True)


def directional_curvature(
    closure: Closure | Sequence[Closure],
    parameters: Mapping[str, Tensor],
    update: Tensor,
    *,
    loss: Tensor,
    gradient: Tensor,
    learning_rate: float | None = None,
    method: DirectionalMethod = "loss",
    samples: int | Sequence[int] = 1,
    reduce: Reduce | None = None,
) -> DirectionalCurvature:
    """Estimate the curvature along an update, after it was taken, from the loss before and after.

    It is cheaper than `curvature_along`, which is exact: after steps as long as those of training these figures are off
    by 10 % and more, since they hold all higher derivatives. With L and g before the update u, and L+ and g+ after
    it, on the same batch:

    ===================== ==================================== ================= =================================
    method                u'Hu                                 extra cost        error, with T the third derivative
    ===================== ==================================== ================= =================================
    ``loss``              2 (L+ - L - g'u)                     1 pass forward    T(u,u,u) / 3, cancellation of L+ - L
    ``gradient``          (g+ - g)'u                           1 gradient        T(u,u,u) / 2; fit for autocast
    ``loss_and_gradient`` 6 (L+ - L - g'u) - 2 (g+ - g)'u      1 gradient        fourth order, cancellation of L+ - L
    ===================== ==================================== ================= =================================

    All are exact where the loss is quadratic. The update is divided by nothing: a learning rate is only needed to
    express the result as a sharpness.

    Source: the formulas are Taylor's; ``lambda_c`` is that of "A scalable measure of loss landscape curvature for
    analyzing the training dynamics of LLMs" (arXiv 2601.16979).

    Args:
        closure: The mean loss of one batch from the live parameters, which are those after the update.
        parameters: By name; frozen ones have no place in the vectors.
        update: u, shape ``[size]``: `ParameterLayout.values` now, minus what it was before the step.
        loss: L, as `loss_and_gradient` gave it before the step.
        gradient: g, shape ``[size]``.
        learning_rate: The step's, for ``critical_sharpness``.
        method: One of the above.
        samples: How many samples each batch has.
        reduce: Sums a flat tensor over ranks; called once.

    Returns:
        The figures; the host looks once, at the end.

    Raises:
        LossCurvatureError: If an argument is not accepted.
        NonFiniteCurvatureError: If a loss or gradient is NaN or infinite.

    Example:
        >>> weight = torch.tensor([2.0], requires_grad=True)
        >>> closure, layout = lambda: 1.5 * weight.square().sum(), ParameterLayout({"weight": weight})
        >>> loss, gradient = loss_and_gradient(closure, layout)
        >>> _ = weight.data.sub_(0.1 * gradient)
        >>> figures = directional_curvature(
        ...     closure, {"weight": weight}, -0.1 * gradient, loss=loss, gradient=gradient, learning_rate=0.1
        ... )
        >>> round(figures.curvature, 5), round(figures.critical_sharpness, 5), round(figures.stability, 5)
        (3.0, 3.0, 0.15)
    """
    if method not in DIRECTIONAL_METHODS:
        raise LossCurvatureError(f"method={method!r} is not accepted. Give one of {', '.join(DIRECTIONAL_METHODS)}.")
    _check_learning_rate(learning_rate)
    layout = ParameterLayout(parameters)
    update = layout.check(update, "The update")
    gradient = layout.check(gradient, "The gradient")
    if method == "loss":
        after, change = mean_loss(closure, samples=samples, reduce=reduce), None
    else:
        after, new_gradient = loss_and_gradient(closure, layout, samples=samples, reduce=reduce)
        change = new_gradient.sub_(gradient)
    slope = _dot(gradient, update)
    rise = 2 * (after.to(slope) - loss.detach().to(slope) - slope)
    bend = slope * 0 if change is None else _dot(change, update)
    form = {"loss": rise, "gradient": bend, "loss_and_gradient": 3 * rise - 2 * bend}[method]
    length = _dot(update, update)
    moved = slope * 0 if change is None else _dot(change, change)
    return _figures(torch.stack([form, slope, length, moved]), learning_rate, has_change=change is not None)


def _check_learning_rate(learning_rate: float | None) -> None:
    """Refuse what is no learning rate."""
    if learning_rate is not None and not 0 < learning_rate < math.inf:
        raise LossCurvatureError(f"learning_rate={learning_rate} is not accepted. Give a positive number, or None.")


def _figures(values: Tensor, learning_rate: float | None, *, has_change: bool) -> DirectionalCurvature:
    """Copy the four sums to the host and divide them."""
    form, slope, length, moved = values.tolist()
    if not all(map(math.isfinite, (form, slope, length, moved))):
        raise NonFiniteCurvatureError(
            f"u'Hu = {form}, g'u = {slope}, u'u = {length}: the loss or its gradient is not finite before or after the "
            "update. The learning rate may be too large."
        )
    ratio = form / -slope if slope else math.nan
    return DirectionalCurvature(
        quadratic_form=form,
        curvature=form / length if length else math.nan,
        slope=slope,
        stability=ratio / 2,
        critical_sharpness=None if learning_rate is None else ratio / learning_rate,
        gradient_change=math.sqrt(moved / length) if has_change and length else None,
    )


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the dot product, accumulated in float64 where the device has it."""
    return (a * b).sum(dtype=accumulation_dtype(a.device))
