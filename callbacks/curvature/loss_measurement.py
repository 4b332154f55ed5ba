"""One measurement of the loss's curvature: from a probe to figures."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lit_gelu.callbacks.curvature.loss_settings import EIGENVALUES, LossSettings
from lit_gelu.curvature.loss import (
    Eigenpair,
    ParameterLayout,
    ParameterOperator,
    SpectralDensity,
    critical_sharpness,
    directional_curvature,
    displaced,
    extreme_eigenvalues,
    gauss_newton_operator,
    hessian_operator,
    hutchinson_trace,
    loss_and_gradient,
    module_layout,
    spectral_density,
)
from lit_gelu.curvature.loss.probe import LossProbe
from lit_gelu.curvature.loss.probe_outputs import ParsedLoss

Reduce = Callable[[Tensor], Tensor]
Figures = dict[tuple[str, ...], float]

FINITE_DIFFERENCES = "finite_differences"
"""The method that is not exact: figures that rest on it have it in their names."""

_NEGLIGIBLE = 0.01
"""An eigenvalue smaller than this share of the largest in magnitude has no sign worth reporting."""

_NO_DESCENT = 1024
"""A loss that rises at a thousandth of the step taken rises from the start: the update does not lower it."""


@dataclass
class WarmStart:
    """What one event hands to the next.

    Attributes:
        method: How products were computed; "" before the first.
        vectors: The last eigenvectors, by quantity, shape ``[parameters]``.
        learning_rate: The last critical learning rate.
    """

    method: str = ""
    vectors: dict[str, Tensor] = field(default_factory=dict)
    learning_rate: float | None = None

    def state_dict(self, largest: int) -> dict[str, Any]:
        """Return plain data and tensors on the host; the vectors only if they have at most ``largest`` elements."""
        kept = {name: vector.cpu() for name, vector in self.vectors.items() if vector.numel() <= largest}
        return {"method": self.method, "vectors": kept, "learning_rate": self.learning_rate}


@dataclass(frozen=True)
class Step:
    """The optimizer step that was taken.

    Attributes:
        before: The parameters before it, as `ParameterLayout.values` gave them.
        learning_rate: Of the first parameter group.
    """

    before: Tensor
    learning_rate: float


@dataclass
class LossMeasurement:
    """What was measured.

    Attributes:
        figures: By the parts of their names.
        spectrum: The spectral density, if asked for.
        reason: Why products are computed as they are.
    """

    figures: Figures = field(default_factory=dict)
    spectrum: SpectralDensity | None = None
    reason: str = ""


def measure_loss(
    probe: LossProbe,
    settings: LossSettings,
    warm: WarmStart,
    *,
    event: int,
    step: Step | None = None,
    reduce: Reduce | None = None,
    precise: bool = True,
) -> LossMeasurement:
    """Measure all quantities; to be called within the probe's context, on all ranks.

    Args:
        probe: Gives the loss as a function of the live parameters.
        settings: What to measure.
        warm: Where to start; changed to where the next event starts.
        event: Number of the event, which all random vectors depend on besides the seed.
        step: For the quantities along the update.
        reduce: Sums a flat tensor over ranks.
        precise: Whether the loss is computed without autocast: differences of losses are then worth taking.

    Returns:
        The figures.
    """
    result = LossMeasurement()
    if settings.of_matrix:
        with _operator(probe, settings, warm, reduce) as operator:
            _measure_matrix(operator, settings, warm, event, result)
    if settings.of_update and step is not None:
        result.figures |= _along_update(probe, settings, warm, step, reduce, precise=precise)
    return result


def _operator(probe: LossProbe, settings: LossSettings, warm: WarmStart, reduce: Reduce | None) -> ParameterOperator:
    """Return the matrix as an operator, by the method that worked at the last event."""
    options: dict[str, Any] = {
        "method": warm.method or "auto",
        "samples": probe.samples,
        "module": probe.module,
        "reduce": reduce,
    }
    if settings.operator == "hessian":
        return hessian_operator(probe.closures, probe.parameters, **options)
    losses = [ParsedLoss(closure) for closure in probe.closures]
    outputs, of_outputs = [loss.outputs for loss in losses], [loss.loss for loss in losses]
    return gauss_newton_operator(outputs, of_outputs, probe.parameters, **options)


def _measure_matrix(
    operator: ParameterOperator, settings: LossSettings, warm: WarmStart, event: int, result: LossMeasurement
) -> None:
    """Fill in the quantities of the matrix; a name says if they rest on finite differences."""
    figures: Figures = {}
    pairs = _eigenpairs(operator, settings, warm, event)
    for name, pair in pairs.items():
        warm.vectors[name] = pair.vector
        figures[name,] = pair.value
        figures[f"{name}_residual",] = pair.residual
        figures[f"{name}_converged",] = float(pair.converged)
    if "trace" in settings.quantities:
        figures |= _trace(operator, settings, list(pairs.values())[: operator.size], event)
    if "spectral_density" in settings.quantities:
        result.spectrum = spectral_density(
            operator, steps=settings.density_steps, runs=settings.density_runs, seed=settings.seed, event=event
        )
        figures |= _of_spectrum(result.spectrum)
    warm.method = operator.method
    result.reason = operator.reason
    suffix = f"_{FINITE_DIFFERENCES}" if operator.method == FINITE_DIFFERENCES else ""
    result.figures |= {(first + suffix, *rest): value for (first, *rest), value in figures.items()}
    result.figures["probe_loss",] = operator.loss.item()
    result.figures["gradient_norm",] = operator.gradient.norm().item()
    result.figures["products",] = float(operator.products)


def _eigenpairs(
    operator: ParameterOperator, settings: LossSettings, warm: WarmStart, event: int
) -> dict[str, Eigenpair]:
    """Return the extreme eigenvalues that are asked for, from the last event's vectors where there are any."""
    names = [name for name in EIGENVALUES if name in settings.quantities]
    if not names:
        return {}
    known = [warm.vectors[name] for name in names if name in warm.vectors]
    is_warm = len(known) == len(names) and all(vector.numel() == operator.size for vector in known)
    options: dict[str, Any] = {
        "start": torch.stack([vector.to(operator.device) for vector in known]) if is_warm else None,
        "steps": settings.warm_steps if is_warm else settings.lanczos_steps,
        "accuracy": settings.accuracy if is_warm else None,  # a random start may have missed the largest so far
        "seed": settings.seed,
        "event": event,
    }
    if len(names) == 2:
        return dict(zip(names, extreme_eigenvalues(operator, which="both", **options), strict=True))
    which: Any = "largest" if names == ["top_eigenvalue"] else "smallest"
    return {names[0]: extreme_eigenvalues(operator, which=which, **options)}


def _trace(operator: ParameterOperator, settings: LossSettings, pairs: list[Eigenpair], event: int) -> Figures:
    """Return the trace, as a whole and by layer, and the Frobenius norm."""
    estimate = hutchinson_trace(
        operator,
        settings.trace_probes,
        seed=settings.seed,
        event=event,
        deflate=pairs or None,
        layout=module_layout(operator.layout),
    )
    figures: Figures = {
        ("trace",): estimate.trace,
        ("trace_standard_error",): estimate.standard_error,
        ("frobenius_norm",): estimate.frobenius_norm,
    }
    by_layer: Mapping[str, Mapping[str, float]] = {
        "trace_by_layer": estimate.by_layer,
        "trace_standard_error_by_layer": estimate.standard_error_by_layer,
    }
    for name, layers in by_layer.items():
        figures |= {(name, layer or "(root)"): value for layer, value in layers.items()}
    return figures


def _of_spectrum(spectrum: SpectralDensity) -> Figures:
    """Return what of a spectral density fits in numbers."""
    # Most eigenvalues are zero up to rounding, of either sign: these are not counted as negative.
    threshold = -_NEGLIGIBLE * spectrum.nodes.abs().max()
    negative = (spectrum.weights * (spectrum.nodes < threshold)).sum(1).mean()
    return {
        ("spectrum_mean",): spectrum.moment(1),
        ("spectrum_share_negative",): float(negative),
        ("spectrum_largest_node",): float(spectrum.nodes.max()),
        ("spectrum_smallest_node",): float(spectrum.nodes.min()),
    }


def _along_update(
    probe: LossProbe, settings: LossSettings, warm: WarmStart, step: Step, reduce: Reduce | None, *, precise: bool
) -> Figures:
    """Return the quantities along the update, seen from the parameters before it; nothing if there was none."""
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
