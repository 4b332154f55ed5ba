"""One measurement of the loss's curvature, from a probe to figures: of a callback's, and of the command line's."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lit_gelu.curvature.loss import (
    CriticalSharpness,
    Eigenpair,
    ParameterLayout,
    ParameterOperator,
    SpectralDensity,
    TraceEstimate,
    critical_sharpness,
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
from lit_gelu.curvature.loss.linear_operator import agreed_on
from lit_gelu.curvature.loss.start_vectors import directions_of, learned_mixture, mixed_start
from lit_gelu.curvature.probe.loss_probe import LossProbe
from lit_gelu.curvature.probe.training_loss import ParsedLoss
from lit_gelu.curvature.settings import EIGENVALUES, INEXACT, LossSettings
from lit_gelu.display import Displayed, HtmlTable

Reduce = Callable[[Tensor], Tensor]
"""Sums a flat tensor over ranks."""

Figures = dict[tuple[str, ...], float]
"""By the parts of their names."""

_NEGLIGIBLE = 0.01
"""An eigenvalue smaller than this share of the largest in magnitude has no sign worth reporting."""

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
_NO_GRADIENT = "The gradient is 0: there is no direction to find the critical sharpness along."
_NO_RISE = "No critical sharpness: along the gradient the loss rises nowhere or at once, as at a minimum to rounding."


@dataclass
class WarmStart:
    """What one event hands to the next."""

    method: str = ""  # how products were computed; "" before the first
    # The last eigenvectors, by quantity, shape ``[parameters]``.
    vectors: dict[str, Tensor] = field(default_factory=dict)
    learning_rate: float | None = None  # the last critical learning rate
    largest: float | None = None  # the largest eigenvalue in magnitude that was found at the last event
    # In which shares the next eigenvectors were made of these and of the gradient, by quantity; see
    # `lit_gelu.curvature.loss.start_vectors.learned_mixture`.
    mixtures: dict[str, Tensor] = field(default_factory=dict)

    def state_dict(self, largest: int) -> dict[str, Any]:
        """Return plain data and tensors on the host; the vectors only if they have at most ``largest`` elements."""
        kept = {name: vector.cpu() for name, vector in self.vectors.items() if vector.numel() <= largest}
        return {
            "method": self.method,
            "vectors": kept,
            "learning_rate": self.learning_rate,
            "largest": self.largest,
            "mixtures": {name: mixture.cpu() for name, mixture in self.mixtures.items() if name in kept},
        }


@dataclass(frozen=True)
class Step:
    """The optimizer step that was taken."""

    before: Tensor  # the parameters before it, as `ParameterLayout.values` gave them
    learning_rate: float | None  # as `first_learning_rate` found it; ``None`` if there is none


@dataclass(repr=False)
class LossMeasurement(Displayed):
    """What was measured; what was not asked for is empty or ``None``."""

    figures: Figures = field(default_factory=dict)  # by the parts of the names under which a monitor logs them
    eigenpairs: dict[str, Eigenpair] = field(default_factory=dict)  # by quantity
    trace: TraceEstimate | None = None
    spectrum: SpectralDensity | None = None
    critical: CriticalSharpness | None = None  # where it was found
    method: str = ""  # how products with the matrix were computed
    reason: str = ""  # why that way
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
    warm: WarmStart | None = None,
    *,
    event: int = 0,
    step: Step | None = None,
    reduce: Reduce | None = None,
) -> LossMeasurement:
    """Measure all quantities; to be called within the probe's context, on all ranks."""
    # `warm` says where to start, and becomes where the next event starts; random vectors depend on seed and event.
    # Quantities along the update need `step`; without it, the critical sharpness is that of gradient descent.
    warm = WarmStart() if warm is None else warm
    result = LossMeasurement()
    if settings.of_matrix or step is None:
        with _operator(probe, settings, warm, reduce) as operator:
            _measure_matrix(operator, settings, warm, event, result)
            if "critical_sharpness" in settings.quantities and step is None:
                _along_gradient(probe, operator, result, reduce)
    if settings.of_update and step is not None:
        _along_update(probe, settings, warm, step, result, reduce)
    return result


def first_learning_rate(optimizers: Iterable[Optimizer]) -> float | None:
    """Return the first positive learning rate of some optimizers' groups; ``None`` as of Adafactor, which has none."""
    rates = [group.get("lr") for optimizer in optimizers for group in optimizer.param_groups]
    return next((float(rate) for rate in rates if rate is not None and rate > 0), None)


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
    pairs = result.eigenpairs = _eigenpairs(operator, settings, warm, event)
    for name, pair in pairs.items():
        warm.vectors[name] = pair.vector
        warm.largest = max(abs(pair.value) for pair in pairs.values())
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
    warm.method = result.method = operator.method
    result.reason, result.parameters = operator.reason, operator.size
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


def _along_update(
    probe: LossProbe,
    settings: LossSettings,
    warm: WarmStart,
    step: Step,
    result: LossMeasurement,
    reduce: Reduce | None,
) -> None:
    """Fill in the quantities along the update, seen from the parameters before it; to be called on all ranks."""
    layout = ParameterLayout(probe.parameters)
    update = layout.values().sub_(step.before)
    if not update.any():
        return  # the learning rate was 0, or the gradient scaler left the step out
    coarse = _is_coarse(probe)
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
                _critical_along_update(probe, warm, update, step.learning_rate, loss, options, result)


def _is_coarse(probe: LossProbe) -> bool:
    """Return whether parameters have 16 bits: differences of losses and of gradients are noise then."""
    return any(value.dtype in (torch.float16, torch.bfloat16) for value in probe.parameters.values())


def _by_product(
    probe: LossProbe,
    settings: LossSettings,
    warm: WarmStart,
    update: Tensor,
    options: Mapping[str, Any],
    result: LossMeasurement,
    *,
    coarse: bool,
) -> Tensor:
    """Fill in the figures from one product with the Hessian, and return the loss before the update."""
    of_hessian = settings.operator == "hessian"
    method: Any = (warm.method or settings.method) if of_hessian else "auto"
    with hessian_operator(
        probe.closures, probe.parameters, module=probe.module, method=method, largest=warm.largest, **options
    ) as hessian:
        along = curvature_along(hessian, update)
        if of_hessian and not warm.method:
            warm.method = result.method = hessian.method
            result.reason = result.reason or hessian.reason
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


def _critical_along_update(
    probe: LossProbe,
    warm: WarmStart,
    update: Tensor,
    learning_rate: float,
    loss: Tensor | None,
    options: Mapping[str, Any],
    result: LossMeasurement,
) -> None:
    """Fill in how far along the update the loss is back where it was; no figure if it never falls, or never rises."""
    start = warm.learning_rate or learning_rate
    found = critical_sharpness(
        probe.closures, probe.parameters, update / -learning_rate, learning_rate=start, loss=loss, **options
    )
    if not found.converged:  # a bound, which the next event must not start from
        result.figures["critical_sharpness_converged",] = 0.0
        return
    warm.learning_rate = found.learning_rate
    result.critical = found
    result.figures |= _of_critical(found)


def _along_gradient(
    probe: LossProbe, operator: ParameterOperator, result: LossMeasurement, reduce: Reduce | None
) -> None:
    """Fill in the critical sharpness of gradient descent, unless the loss does not fall along the gradient."""
    if _is_coarse(probe) or not operator.gradient.any():
        result.left_out.append(_NOT_IN_16_BITS if _is_coarse(probe) else _NO_GRADIENT)
        return
    sharpest = max((pair.value for pair in result.eigenpairs.values()), default=0.0)
    found = critical_sharpness(
        probe.closures,
        probe.parameters,
        operator.gradient,
        learning_rate=1 / sharpest if sharpest > 0 else 1.0,
        loss=operator.loss,
        samples=probe.samples,
        reduce=reduce,
    )
    if found.converged:
        result.critical = found
        result.figures |= _of_critical(found)
    else:
        result.figures["critical_sharpness_converged",] = 0.0
        result.left_out.append(_NO_RISE)


def _of_critical(found: CriticalSharpness) -> Figures:
    """Return a critical sharpness by the names of its figures."""
    return {
        ("critical_sharpness",): found.sharpness,
        ("critical_learning_rate",): found.learning_rate,
        ("critical_sharpness_converged",): float(found.converged),
    }
