"""The loss's curvature along the step that the optimizer took."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lit_gelu.callbacks.curvature.loss_settings import INEXACT, LossSettings
from lit_gelu.callbacks.curvature.loss_state import Figures, Reduce, Step, WarmStart
from lit_gelu.curvature.loss import (
    ParameterLayout,
    critical_sharpness,
    curvature_along,
    displaced,
    hessian_operator,
)
from lit_gelu.curvature.probe.loss_probe import LossProbe

_NO_DESCENT = 1024
"""A loss that rises at a thousandth of the step taken rises from the start: the update does not lower it."""


_NOT_IN_16_BITS = (
    "critical_sharpness is left out: it compares losses, and in a model with 16-bit parameters their differences are "
    "lost in rounding. Keep the parameters in float32, e.g. with Trainer(precision='bf16-mixed')."
)
_NO_RATE = (
    "critical_sharpness is left out: no parameter group of the optimizer has a positive learning rate ('lr') to "
    "express it in. Ask for directional, which needs none."
)
_NO_EXACT_PRODUCT = (
    "directional is left out: with 16-bit parameters it needs an exact product with the Hessian, and the model has "
    "none, since not all of it can be differentiated twice."
)


@dataclass
class AlongUpdate:
    """What was measured along an update.

    Attributes:
        figures: By the parts of their names; none if there was no update.
        left_out: What was asked for and is not there, and why.
        reason: Why products are computed as they are.
    """

    figures: Figures = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    reason: str = ""


def along_update(
    probe: LossProbe, settings: LossSettings, warm: WarmStart, step: Step, reduce: Reduce | None
) -> AlongUpdate:
    """Measure the quantities along the update, seen from the parameters before it; to be called on all ranks.

    Args:
        probe: Gives the loss as a function of the live parameters.
        settings: What to measure.
        warm: Holds how products are computed, and the last critical learning rate; changed to this one.
        step: The update.
        reduce: Sums a flat tensor over ranks.

    Returns:
        The figures.
    """
    layout = ParameterLayout(probe.parameters)
    update = layout.values().sub_(step.before)
    result = AlongUpdate()
    if not update.any():
        return result  # the learning rate was 0, or the gradient scaler left the step out
    coarse = any(value.dtype in (torch.float16, torch.bfloat16) for value in probe.parameters.values())
    options: dict[str, Any] = {"samples": probe.samples, "reduce": reduce}
    with displaced(layout) as displacement:
        displacement.move(-update)
        loss = None
        if "directional" in settings.quantities:
            loss = _by_product(probe, settings, warm, update, options, result, coarse=coarse)
        if "critical_sharpness" in settings.quantities:
            if coarse or step.learning_rate is None:
                result.left_out.append(_NOT_IN_16_BITS if coarse else _NO_RATE)
            else:
                result.figures |= _critical(probe, warm, update, step.learning_rate, loss, options)
    return result


def _by_product(
    probe: LossProbe,
    settings: LossSettings,
    warm: WarmStart,
    update: Tensor,
    options: Mapping[str, Any],
    result: AlongUpdate,
    *,
    coarse: bool,
) -> Tensor:
    """Fill in the figures from one product with the Hessian; the loss is returned.

    There are none in 16-bit parameters if the product is by finite differences, which are noise there.

    Returns:
        The loss before the update.
    """
    of_hessian = settings.operator == "hessian"
    method: Any = (warm.method or settings.method) if of_hessian else "auto"
    with hessian_operator(
        probe.closures, probe.parameters, module=probe.module, method=method, largest=warm.largest, **options
    ) as hessian:
        along = curvature_along(hessian, update)
        if of_hessian and not warm.method:
            warm.method, result.reason = hessian.method, hessian.reason
    inexact = hessian.method in INEXACT
    if coarse and inexact:
        result.left_out.append(_NO_EXACT_PRODUCT)
        return hessian.loss
    suffix = f"_{INEXACT[0]}" if inexact else ""
    result.figures |= {
        (f"directional_curvature{suffix}",): along.curvature,
        ("directional_slope",): along.slope,
        (f"directional_stability{suffix}",): along.stability,
    }
    return hessian.loss


def _critical(
    probe: LossProbe,
    warm: WarmStart,
    update: Tensor,
    learning_rate: float,
    loss: Tensor | None,
    options: Mapping[str, Any],
) -> Figures:
    """Return how far along the update the loss is back where it was; no figure if it never falls."""
    found = critical_sharpness(
        probe.closures,
        probe.parameters,
        update / -learning_rate,
        learning_rate=warm.learning_rate or learning_rate,
        loss=loss,
        **options,
    )
    if found.learning_rate < learning_rate / _NO_DESCENT:
        return {("critical_sharpness_converged",): 0.0}
    warm.learning_rate = found.learning_rate
    return {
        ("critical_sharpness",): found.sharpness,
        ("critical_learning_rate",): found.learning_rate,
        ("critical_sharpness_converged",): float(found.converged),
    }
