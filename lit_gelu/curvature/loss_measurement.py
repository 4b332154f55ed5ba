"""One measurement of the loss's curvature, from a probe to figures: of a callback's, and of the command line's."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lit_gelu.curvature.loss import (
    Eigenpair,
    ParameterLayout,
    ParameterOperator,
    SpectralDensity,
    TraceEstimate,
    curvature_along,
    displaced,
    extreme_eigenvalues,
    gauss_newton_operator,
    hessian_operator,
    hutchinson_trace,
    module_layout,
    spectral_density,
)
from lit_gelu.curvature.loss.lanczos import random_start
from lit_gelu.curvature.probe.loss_probe import LossProbe
from lit_gelu.curvature.probe.training_loss import ParsedLoss
from lit_gelu.curvature.settings import EIGENVALUES, LossSettings
from lit_gelu.display import Displayed, HtmlTable

Reduce = Callable[[Tensor], Tensor]
"""Sums a flat tensor over ranks."""

Figures = dict[tuple[str, ...], float]
"""By the parts of their names."""

Eigenvectors = dict[str, Tensor]
"""The last eigenvectors, by quantity, shape ``[parameters]``: where the next event starts."""

_NEGLIGIBLE = 0.01
"""An eigenvalue smaller than this share of the largest in magnitude has no sign worth reporting."""


@dataclass(repr=False)
class LossMeasurement(Displayed):
    """What was measured; what was not asked for is empty or ``None``."""

    figures: Figures = field(default_factory=dict)  # by the parts of the names under which a monitor logs them
    eigenpairs: dict[str, Eigenpair] = field(default_factory=dict)  # by quantity
    trace: TraceEstimate | None = None
    spectrum: SpectralDensity | None = None
    note: str = ""  # which functions were computed in another way, to be differentiated twice
    parameters: int = 0  # how many parameters are trained
    # What was asked for and is not there, and why: a sentence each, without numbers.
    left_out: list[str] = field(default_factory=list)

    def _summary(self) -> str:
        figures = ", ".join(f"{'/'.join(name)} {value:.4g}" for name, value in self.figures.items())
        return f"{figures or 'no figures'}, {self.parameters} parameters"

    def _html_table(self) -> HtmlTable:
        rows = [("/".join(name), value) for name, value in self.figures.items()]
        return HtmlTable(("figure", "value"), rows, f"loss curvature, {self.parameters} parameters", self.left_out)


def measure_loss(
    probe: LossProbe,
    settings: LossSettings,
    vectors: Eigenvectors | None = None,
    *,
    event: int = 0,
    before: Tensor | None = None,
    reduce: Reduce | None = None,
) -> LossMeasurement:
    """Measure all quantities; to be called within the probe's context, on all ranks."""
    # `vectors` say where to start, and become where the next event starts; random vectors depend on seed and event.
    # `before` are the parameters before the optimizer step, as `ParameterLayout.values` gave them; quantities along the
    # update need them.
    vectors = {} if vectors is None else vectors
    result = LossMeasurement()
    if settings.of_matrix:
        with _operator(probe, settings, reduce) as operator:
            _measure_matrix(operator, settings, vectors, event, result)
    if before is not None and "directional" in settings.quantities:
        _measure_along_update(probe, before, result, reduce)
    return result


def _operator(probe: LossProbe, settings: LossSettings, reduce: Reduce | None) -> ParameterOperator:
    """Return the matrix as an operator."""
    if settings.operator == "hessian":
        return hessian_operator(probe.closures, probe.parameters, samples=probe.samples, reduce=reduce)
    losses = [ParsedLoss(closure) for closure in probe.closures]
    outputs, of_outputs = [loss.outputs for loss in losses], [loss.loss for loss in losses]
    return gauss_newton_operator(outputs, of_outputs, probe.parameters, samples=probe.samples, reduce=reduce)


def _measure_matrix(
    operator: ParameterOperator, settings: LossSettings, vectors: Eigenvectors, event: int, result: LossMeasurement
) -> None:
    """Fill in the quantities of the matrix."""
    figures = result.figures
    pairs = result.eigenpairs = _eigenpairs(operator, settings, vectors, event)
    for name, pair in pairs.items():
        vectors[name] = pair.vector
        figures[name,] = pair.estimate
        figures[f"{name}_residual",] = pair.residual
        figures[f"{name}_converged",] = float(pair.converged)
    if "trace" in settings.quantities:
        estimate = result.trace = _trace(operator, settings, list(pairs.values())[: operator.size], event)
        figures |= _of_trace(estimate)
        goal = settings.trace_accuracy
        if goal is not None and estimate.standard_error > goal * abs(estimate.trace):
            result.left_out.append(
                f"after {estimate.probes} random vectors the standard error of the trace is more than "
                f"{100 * goal:g}% of it, at this event and maybe at others: see trace_standard_error. Give a larger "
                "max_trace_probes=, or trace_accuracy=None for no more than trace_probes."
            )
    if "spectral_density" in settings.quantities:
        result.spectrum = spectral_density(
            operator, steps=settings.density_steps, runs=settings.density_runs, seed=settings.seed, event=event
        )
        figures |= _of_spectrum(result.spectrum)
    result.note, result.parameters = operator.note, operator.size
    figures["probe_loss",] = operator.loss.item()
    figures["gradient_norm",] = operator.gradient.norm().item()
    figures["products",] = float(operator.products)


def _eigenpairs(
    operator: ParameterOperator, settings: LossSettings, vectors: Eigenvectors, event: int
) -> dict[str, Eigenpair]:
    """Return the extreme eigenvalues that are asked for, from the last event's vectors where there are any."""
    names = [name for name in EIGENVALUES if name in settings.quantities]
    if not names:
        return {}
    last = [vectors[name].to(operator.device) for name in names if name in vectors]
    is_warm = len(last) == len(names) and all(vector.numel() == operator.size for vector in last)
    # Other examples, and the same ones some steps later, have another eigenvector: much of it is in their gradient.
    starts = [*(last if is_warm else [random_start(operator, settings.seed, event)]), operator.gradient]
    options: dict[str, Any] = {
        "start": torch.stack(starts),
        "steps": settings.warm_steps if is_warm else settings.lanczos_steps,
        "accuracy": settings.accuracy if is_warm else None,  # a first start may have missed the largest so far
        "seed": settings.seed,
        "event": event,
    }
    which: Any = "both" if len(names) == 2 else {"top_eigenvalue": "largest"}.get(names[0], "smallest")
    pairs = extreme_eigenvalues(operator, which=which, **options)
    return dict(zip(names, pairs if isinstance(pairs, tuple) else (pairs,), strict=True))


def _trace(operator: ParameterOperator, settings: LossSettings, pairs: list[Eigenpair], event: int) -> TraceEstimate:
    """Return the trace, as a whole and by layer, and the Frobenius norm."""
    return hutchinson_trace(
        operator,
        settings.trace_probes,
        seed=settings.seed,
        event=event,
        deflate=pairs,
        layout=module_layout(operator.layout),
        accuracy=settings.trace_accuracy,
        most=settings.max_trace_probes,
    )


def _of_trace(estimate: TraceEstimate) -> Figures:
    """Return an estimated trace by the names of its figures."""
    errors = estimate.standard_error_by_layer
    return {
        ("trace",): estimate.trace,
        ("trace_standard_error",): estimate.standard_error,
        ("frobenius_norm",): estimate.frobenius_norm,
        **{("trace_by_layer", layer or "(root)"): value for layer, value in estimate.by_layer.items()},
        **{("trace_standard_error_by_layer", layer or "(root)"): value for layer, value in errors.items()},
    }


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


def _measure_along_update(probe: LossProbe, before: Tensor, result: LossMeasurement, reduce: Reduce | None) -> None:
    """Fill in the figures along the update, by one product with the Hessian at the parameters before it."""
    layout = ParameterLayout(probe.parameters)
    update = layout.values().sub_(before)
    if not update.any():
        return  # the learning rate was 0, or the gradient scaler left the step out
    with displaced(layout) as displacement:
        displacement.move(-update)
        with hessian_operator(probe.closures, probe.parameters, samples=probe.samples, reduce=reduce) as hessian:
            along = curvature_along(hessian, update)
    result.note = result.note or hessian.note
    result.figures |= {
        ("directional_curvature",): along.curvature,
        ("directional_slope",): along.slope,
        ("directional_stability",): along.stability,
    }
