"""One measurement of the loss's curvature: from a probe to figures."""

from dataclasses import dataclass, field
from typing import Any

import torch

from lit_gelu.callbacks.curvature.loss_along_update import along_update
from lit_gelu.callbacks.curvature.loss_settings import EIGENVALUES, INEXACT, LossSettings
from lit_gelu.callbacks.curvature.loss_state import Figures, Reduce, Step, WarmStart
from lit_gelu.curvature.loss import (
    Eigenpair,
    ParameterOperator,
    SpectralDensity,
    TraceEstimate,
    extreme_eigenvalues,
    gauss_newton_operator,
    hessian_operator,
    hutchinson_trace,
    module_layout,
    spectral_density,
)
from lit_gelu.curvature.loss.lanczos import random_start
from lit_gelu.curvature.loss.linear_operator import agreed_on
from lit_gelu.curvature.loss.start_vectors import directions_of, learned_mixture, mixed_start
from lit_gelu.curvature.probe.loss_probe import LossProbe
from lit_gelu.curvature.probe.training_loss import ParsedLoss

_NEGLIGIBLE = 0.01
"""An eigenvalue smaller than this share of the largest in magnitude has no sign worth reporting."""


@dataclass
class LossMeasurement:
    """What was measured.

    Attributes:
        figures: By the parts of their names.
        spectrum: The spectral density, if asked for.
        reason: Why products are computed as they are.
        left_out: What was asked for and is not there, and why: a sentence each, without numbers.
    """

    figures: Figures = field(default_factory=dict)
    spectrum: SpectralDensity | None = None
    reason: str = ""
    left_out: list[str] = field(default_factory=list)


def measure_loss(
    probe: LossProbe,
    settings: LossSettings,
    warm: WarmStart,
    *,
    event: int,
    step: Step | None = None,
    reduce: Reduce | None = None,
) -> LossMeasurement:
    """Measure all quantities; to be called within the probe's context, on all ranks.

    Args:
        probe: Gives the loss as a function of the live parameters.
        settings: What to measure.
        warm: Where to start; changed to where the next event starts.
        event: Number of the event, which all random vectors depend on besides the seed.
        step: For the quantities along the update.
        reduce: Sums a flat tensor over ranks.

    Returns:
        The figures.
    """
    result = LossMeasurement()
    if settings.of_matrix:
        with _operator(probe, settings, warm, reduce) as operator:
            _measure_matrix(operator, settings, warm, event, result)
    if settings.of_update and step is not None:
        along = along_update(probe, settings, warm, step, reduce)
        result.figures |= along.figures
        result.left_out = along.left_out
        result.reason = result.reason or along.reason
    return result


def _operator(probe: LossProbe, settings: LossSettings, warm: WarmStart, reduce: Reduce | None) -> ParameterOperator:
    """Return the matrix as an operator, by the method that worked at the last event."""
    options: dict[str, Any] = {
        "method": warm.method if settings.method == "auto" and warm.method else settings.method,
        "samples": probe.samples,
        "module": probe.module,
        "reduce": reduce,
    }
    if settings.operator == "hessian":
        return hessian_operator(probe.closures, probe.parameters, largest=warm.largest, **options)
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
        warm.largest = max(abs(pair.value) for pair in pairs.values())
        figures[name,] = pair.estimate
        figures[f"{name}_residual",] = pair.residual
        figures[f"{name}_converged",] = float(pair.converged)
    if "trace" in settings.quantities:
        estimate = _trace(operator, settings, list(pairs.values())[: operator.size], event)
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
    warm.method = operator.method
    result.reason = operator.reason
    suffix = f"_{INEXACT[0]}" if operator.method in INEXACT else ""
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
    known = {name: warm.vectors[name].to(operator.device) for name in names if name in warm.vectors}
    is_warm = len(known) == len(names) and all(vector.numel() == operator.size for vector in known.values())
    # Other examples, and the same ones some steps later, have another eigenvector: much of it is in their gradient.
    agreed = agreed_on(operator)
    directions = {name: directions_of([vector, operator.gradient], agreed) for name, vector in known.items() if is_warm}
    starts = [mixed_start(each, warm.mixtures.get(name)) for name, each in directions.items()]
    starts = starts or [random_start(operator, settings.seed, event), operator.gradient]
    options: dict[str, Any] = {
        "start": starts[0] if len(starts) == 1 else torch.stack(starts),
        "steps": settings.warm_steps if is_warm else settings.lanczos_steps,
        "accuracy": settings.accuracy if is_warm else None,  # a first start may have missed the largest so far
        "seed": settings.seed,
        "event": event,
    }
    which: Any = "both" if len(names) == 2 else {"top_eigenvalue": "largest"}.get(names[0], "smallest")
    found = extreme_eigenvalues(operator, which=which, **options)
    pairs = dict(zip(names, found if isinstance(found, tuple) else (found,), strict=True))
    warm.mixtures = {
        name: learned_mixture(warm.mixtures.get(name), each, pairs[name].vector, agreed)
        for name, each in directions.items()
    }
    return pairs


def _trace(operator: ParameterOperator, settings: LossSettings, pairs: list[Eigenpair], event: int) -> TraceEstimate:
    """Return the trace, as a whole and by layer, and the Frobenius norm."""
    return hutchinson_trace(
        operator,
        settings.trace_probes,
        seed=settings.seed,
        event=event,
        deflate=pairs or None,
        layout=module_layout(operator.layout),
        accuracy=settings.trace_accuracy,
        most=settings.max_trace_probes,
    )


def _of_trace(estimate: TraceEstimate) -> Figures:
    """Return an estimated trace by the names of its figures."""
    figures: Figures = {
        ("trace",): estimate.trace,
        ("trace_standard_error",): estimate.standard_error,
        ("frobenius_norm",): estimate.frobenius_norm,
    }
    for name, layers in (
        ("trace_by_layer", estimate.by_layer),
        ("trace_standard_error_by_layer", estimate.standard_error_by_layer),
    ):
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
