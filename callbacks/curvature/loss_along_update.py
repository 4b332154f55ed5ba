"""The loss's curvature along the step that the optimizer took."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lit_gelu.callbacks.curvature.loss_settings import LossSettings
from lit_gelu.callbacks.curvature.loss_state import Figures, Reduce, Step, WarmStart
from lit_gelu.curvature.loss import (
    ParameterLayout,
    critical_sharpness,
    directional_curvature,
    displaced,
    loss_and_gradient,
)
from lit_gelu.curvature.loss.probe import LossProbe

_NO_DESCENT = 1024
"""A loss that rises at a thousandth of the step taken rises from the start: the update does not lower it."""


def along_update(
    probe: LossProbe, settings: LossSettings, warm: WarmStart, step: Step, reduce: Reduce | None, *, precise: bool
) -> Figures:
    """Measure the quantities along the update, seen from the parameters before it; to be called on all ranks.

    Args:
        probe: Gives the loss as a function of the live parameters.
        settings: What to measure.
        warm: Holds the last critical learning rate; changed to this one.
        step: The update.
        reduce: Sums a flat tensor over ranks.
        precise: Whether the loss is computed without autocast: differences of losses are then worth taking.

    Returns:
        The figures; none if there was no update.
    """
    layout = ParameterLayout(probe.parameters)
    update = layout.values().sub_(step.before)
    if not update.any() or not step.learning_rate > 0:
        return {}  # the learning rate was 0, or the gradient scaler left the step out
    options: dict[str, Any] = {"samples": probe.samples, "reduce": reduce}
    figures: Figures = {}
    with displaced(layout) as displacement:
        displacement.move(-update)
        loss, gradient = None, None
        if "directional" in settings.quantities:
            loss, gradient = loss_and_gradient(probe.closures, layout, **options)
        if "critical_sharpness" in settings.quantities:
            figures |= _critical(probe, warm, update, step.learning_rate, loss, options)
    if loss is not None and gradient is not None:
        along = directional_curvature(
            probe.closures,
            probe.parameters,
            update,
            loss=loss,
            gradient=gradient,
            learning_rate=step.learning_rate,
            method="loss" if precise else "gradient",
            **options,
        )
        figures["directional_curvature",] = along.curvature
        figures["directional_slope",] = along.slope
        figures["directional_stability",] = along.stability
    return figures


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
