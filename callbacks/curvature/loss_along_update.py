"""The loss's curvature along the step that the optimizer took."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lit_gelu.callbacks.curvature.loss_settings import INEXACT, LossSettings
from lit_gelu.callbacks.curvature.loss_state import Figures, Reduce, Step, WarmStart
from lit_gelu.curvature.activation.totals import accumulation_dtype
from lit_gelu.curvature.loss import (
    NonFiniteCurvatureError,
    ParameterLayout,
    critical_sharpness,
    directional_curvature,
    displaced,
    hessian_operator,
    loss_and_gradient,
)
from lit_gelu.curvature.loss.probe import LossProbe

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


def along_update(
    probe: LossProbe, settings: LossSettings, warm: WarmStart, step: Step, reduce: Reduce | None, *, precise: bool
) -> tuple[Figures, list[str]]:
    """Measure the quantities along the update, seen from the parameters before it; to be called on all ranks.

    Args:
        probe: Gives the loss as a function of the live parameters.
        settings: What to measure.
        warm: Holds the last critical learning rate; changed to this one.
        step: The update.
        reduce: Sums a flat tensor over ranks.
        precise: Whether the loss is computed without autocast: differences of losses are then worth taking. In 16-bit
            parameters neither they are nor those of gradients: a product with the Hessian takes their place.

    Returns:
        The figures, none if there was no update; and sentences that say what was left out and why.
    """
    layout = ParameterLayout(probe.parameters)
    update = layout.values().sub_(step.before)
    if not update.any():
        return {}, []  # the learning rate was 0, or the gradient scaler left the step out
    coarse = any(value.dtype in (torch.float16, torch.bfloat16) for value in probe.parameters.values())
    options: dict[str, Any] = {"samples": probe.samples, "reduce": reduce}
    figures: Figures = {}
    left_out: list[str] = []
    with displaced(layout) as displacement:
        displacement.move(-update)
        loss, gradient = None, None
        if "directional" in settings.quantities and not coarse:
            loss, gradient = loss_and_gradient(probe.closures, layout, **options)
        elif "directional" in settings.quantities:
            figures |= _by_product(probe, update, options)
            left_out += [] if figures else [_NO_EXACT_PRODUCT]
        if "critical_sharpness" in settings.quantities:
            if coarse or step.learning_rate is None:
                left_out.append(_NOT_IN_16_BITS if coarse else _NO_RATE)
            else:
                figures |= _critical(probe, warm, update, step.learning_rate, loss, options)
    if loss is not None and gradient is not None:
        how: Any = "loss" if precise else "gradient"
        options |= {"loss": loss, "gradient": gradient, "method": how}
        along = directional_curvature(probe.closures, probe.parameters, update, **options)
        figures |= _named(along.curvature, along.slope, along.stability)
    return figures, left_out


def _by_product(probe: LossProbe, update: Tensor, options: Mapping[str, Any]) -> Figures:
    """Return the figures along the update from one product with the Hessian; none if that is not exact."""
    length = update.norm()
    direction = update / length
    with hessian_operator(probe.closures, probe.parameters, module=probe.module, **options) as hessian:
        product = hessian(direction)
        if hessian.method in INEXACT:
            return {}
        dtype = accumulation_dtype(direction.device)
        curvature = (product * direction).sum(dtype=dtype).item()
        slope = (hessian.gradient * update).sum(dtype=dtype).item()
    form = curvature * length.item() ** 2
    if not math.isfinite(curvature) or not math.isfinite(slope):
        raise NonFiniteCurvatureError(
            f"u'Hu / u'u = {curvature}, g'u = {slope} along the update u: the loss's derivatives are not finite before "
            "it. The learning rate may be too large, or the parameters' precision too low."
        )
    return _named(curvature, slope, form / (-2 * slope) if slope else math.nan)


def _named(curvature: float, slope: float, stability: float) -> Figures:
    """Return the figures along the update by their names."""
    return {
        ("directional_curvature",): curvature,
        ("directional_slope",): slope,
        ("directional_stability",): stability,
    }


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
