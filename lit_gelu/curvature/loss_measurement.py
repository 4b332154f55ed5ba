"""One measurement of the loss's curvature, from a probe to figures: of a callback's, and of the command line's."""

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lit_gelu.curvature.loss import (
    Eigenpair,
    ParameterLayout,
    ParameterOperator,
    SpectralDensity,
    TraceEstimate,
    curvature_along,
    extreme_eigenvalues,
    hessian_operator,
    hutchinson_trace,
    module_layout,
    spectral_density,
)
from lit_gelu.curvature.loss.parameters import Reduce, displaced
from lit_gelu.curvature.loss.preconditioner import PreconditionedOperator, Preconditioner
from lit_gelu.curvature.loss.spectrum import random_start
from lit_gelu.curvature.probe.loss_probe import LossProbe
from lit_gelu.curvature.settings import EIGENVALUES, OF_MATRIX, OF_OPTIMIZER, LossSettings
from lit_gelu.extras import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Figures = dict[tuple[str, ...], float]
"""By the parts of their names."""

Eigenvectors = dict[str, Tensor]
"""The last eigenvectors, by quantity, shape ``[parameters]``: where the next event starts."""

_POINTS = 512
_SMOOTHING = 0.01  # of the span: narrow against the bulk, wide enough that a single eigenvalue is seen
_NEGLIGIBLE = 0.01  # of the largest in magnitude: a smaller eigenvalue has no sign worth reporting


@dataclass
class LossMeasurement:
    """What was measured; what was not asked for is empty or ``None``."""

    figures: Figures = field(default_factory=dict)  # by the parts of the names under which a monitor logs them
    eigenpairs: dict[str, Eigenpair] = field(default_factory=dict)  # by quantity
    trace: TraceEstimate | None = None
    spectrum: SpectralDensity | None = None
    note: str = ""  # which functions were computed in another way, to be differentiated twice
    parameters: int = 0  # how many parameters are trained
    # What was asked for and is not there, and why: a sentence each, without numbers.
    left_out: list[str] = field(default_factory=list)


def measure_loss(
    probe: LossProbe,
    settings: LossSettings,
    vectors: Eigenvectors | None = None,
    *,
    event: int = 0,
    before: Tensor | None = None,
    preconditioner: Preconditioner | None = None,
    reduce: Reduce | None = None,
) -> LossMeasurement:
    """Measure all quantities; to be called within the probe's context, on all ranks."""
    # `vectors` say where to start, and become where the next event starts; random vectors depend on seed and event.
    # `before` are the parameters before the optimizer step, as `ParameterLayout.values` gave them; quantities along the
    # update need them. The preconditioner is the optimizer's now; the quantities with a limit need it.
    result = LossMeasurement()
    shared: dict[str, Any] = {"samples": probe.samples, "reduce": reduce, "keep_graphs": settings.budget.keep_graphs}
    vectors = {} if vectors is None else vectors
    if not {*OF_MATRIX, *OF_OPTIMIZER}.isdisjoint(settings.quantities):
        with hessian_operator(probe.closures, probe.parameters, **shared) as hessian:
            _measure_matrix(hessian, settings, vectors, event, result)
            if preconditioner is not None:
                _measure_optimizer(hessian, preconditioner, settings, vectors, event, result)
            result.figures["products",] = float(hessian.products)
    if before is not None and "directional" in settings.quantities:
        layout = ParameterLayout(probe.parameters)
        update = layout.values().sub_(before)
        if update.any():  # else the learning rate was 0, or the gradient scaler left the step out
            with displaced(layout) as move:
                move(-update)
                with hessian_operator(probe.closures, probe.parameters, **shared) as hessian:
                    along = curvature_along(hessian, update)
            result.note = result.note or hessian.note
            result.figures |= {(f"directional_{name}",): value for name, value in asdict(along).items()}
    return result


def _measure_matrix(
    operator: ParameterOperator, settings: LossSettings, vectors: Eigenvectors, event: int, result: LossMeasurement
) -> None:
    figures, budget, seeds = result.figures, settings.budget, {"seed": settings.seed, "event": event}
    names = [name for name in EIGENVALUES if name in settings.quantities]
    if names:
        last = [vectors[name].to(operator.device) for name in names if name in vectors]
        is_warm = len(last) == len(names) and all(vector.numel() == operator.size for vector in last)
        # Other examples, and the same ones some steps later, have another eigenvector: much is in their gradient.
        start = torch.stack([*(last if is_warm else [random_start(operator, **seeds)]), operator.gradient])
        pairs = extreme_eigenvalues(
            operator,
            start=start,
            steps=max(budget.warm_steps if is_warm else budget.lanczos_steps, len(names)),
            which="both" if len(names) == 2 else "largest" if names == ["top_eigenvalue"] else "smallest",
            accuracy=budget.accuracy if is_warm else None,  # a first start may have missed the largest so far
            **seeds,
        )
        result.eigenpairs = dict(zip(names, pairs, strict=True))
    for name, pair in result.eigenpairs.items():
        vectors[name] = pair.vector
        figures[name,] = pair.estimate
        figures[f"{name}_residual",] = pair.residual
        figures[f"{name}_converged",] = float(pair.converged)
    if "trace" in settings.quantities:
        goal = budget.trace_accuracy
        estimate = result.trace = hutchinson_trace(
            operator,
            budget.trace_probes,
            **seeds,
            deflate=list(result.eigenpairs.values())[: operator.size],
            layout=module_layout(operator.parameters.slices),
            accuracy=goal,
            most=budget.max_trace_probes,
        )
        figures["trace",], figures["trace_standard_error",] = estimate.trace, estimate.standard_error
        figures["frobenius_norm",] = estimate.frobenius_norm
        for kind in ("by_layer", "standard_error_by_layer"):
            by_layer = getattr(estimate, kind)
            figures |= {(f"trace_{kind}", layer or "(root)"): value for layer, value in by_layer.items()}
        if goal is not None and estimate.standard_error > goal * abs(estimate.trace):
            result.left_out.append(
                f"after {estimate.probes} random vectors the standard error of the trace is more than "
                f"{100 * goal:g}% of it, at this event and maybe at others: see trace_standard_error. Give a larger "
                "max_trace_probes=, or trace_accuracy=None for no more than trace_probes."
            )
    if "spectral_density" in settings.quantities:
        spectrum = result.spectrum = spectral_density(operator, steps=budget.density_steps, **seeds)
        # Most eigenvalues are zero up to rounding, of either sign: these are not counted as negative.
        threshold = -_NEGLIGIBLE * spectrum.nodes.abs().max()
        negative = (spectrum.weights * (spectrum.nodes < threshold)).sum(1).mean()
        figures["spectrum_mean",], figures["spectrum_share_negative",] = spectrum.moment(1), float(negative)
        figures["spectrum_largest_node",] = float(spectrum.nodes.max())
        figures["spectrum_smallest_node",] = float(spectrum.nodes.min())
    result.note, result.parameters = operator.note, operator.size
    figures["probe_loss",] = operator.loss.item()
    figures["gradient_norm",] = operator.gradient.norm().item()


def _measure_optimizer(
    hessian: ParameterOperator,
    preconditioner: Preconditioner,
    settings: LossSettings,
    vectors: Eigenvectors,
    event: int,
    result: LossMeasurement,
) -> None:
    figures, name = result.figures, "preconditioned_sharpness"
    if name in settings.quantities:
        operator = PreconditionedOperator(hessian, preconditioner)
        # Of P^-1/2 H P^-1/2 the last eigenvector, and the direction of the gradient.
        last = vectors.get(name)
        is_warm = last is not None and last.numel() == hessian.size
        begin = last.to(hessian.device) if last is not None and is_warm else random_start(hessian, settings.seed, event)
        (pair,) = extreme_eigenvalues(
            operator,
            start=torch.stack([begin, preconditioner.inverse_root * hessian.gradient]),
            steps=settings.budget.warm_steps if is_warm else settings.budget.lanczos_steps,
            accuracy=settings.budget.accuracy if is_warm else None,
            seed=settings.seed,
            event=event,
        )
        vectors[name] = pair.vector
        figures[name,] = pair.estimate
        figures[f"{name}_residual",] = pair.residual
        figures[f"{name}_converged",] = float(pair.converged)
        figures[f"{name}_limit",] = preconditioner.limit
    if "batch_sharpness" in settings.quantities:
        figures["batch_sharpness",] = float(hessian.agreed(hessian.along_gradients().mean().reshape(1)))
        if preconditioner.is_gradient_descent:  # of other optimizers no limit is published
            figures["batch_sharpness_limit",] = preconditioner.limit


def density_figure(spectrum: SpectralDensity, title: str) -> "Figure":
    """Draw how many eigenvalues lie where, on a logarithmic scale: most are near 0, and the few large ones count."""
    figure = new_figure("The picture of a spectral density", figsize=(6.4, 3.6), layout="constrained")
    draw_density(figure.add_subplot(), spectrum, title)
    return figure


def draw_density(axes: "Axes", spectrum: SpectralDensity, title: str) -> None:
    """Draw the same into a plot that is there."""
    low, high = spectrum.nodes.min().item(), spectrum.nodes.max().item()
    width = _SMOOTHING * max(high - low, abs(high), 1e-12)
    grid = torch.linspace(low - 4 * width, high + 4 * width, _POINTS, dtype=torch.float64)
    density = spectrum.density(grid, width)
    axes.semilogy(grid.numpy(), density.numpy())
    axes.set_ylim(bottom=density.max().item() * 1e-7, top=density.max().item() * 3)
    axes.axvline(0.0, color="grey", linewidth=0.8)
    axes.set_xlabel("eigenvalue")
    axes.set_ylabel("density")
    axes.set_title(f"{title}: {spectrum.size} eigenvalues, smoothed by {width:.3g}")
