"""What the loss's curvature and the metrics of a run mean, in plain sentences."""

import math
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

from lit_gelu.report.content import Level, LoggedCurve, OptimizerSettings, ReportedRun, RunFinding

NEAR_EDGE = 0.8
"""Share of the limit from which the sharpness is called near it. Cohen et al. 2021 (arXiv 2103.00065) see it rise up to
the limit and stay about there, in full-batch gradient descent."""

BEYOND_EDGE = 1.5
"""Share of the limit from which there is a warning: a few steps beyond it happen at the edge of stability."""

STEEP_STEPS = 0.25
"""Share of the measured steps that raise the loss's quadratic model, from which there is a warning."""

WORSE = 0.1
"""By how much of itself a loss on validation data must have risen above its minimum to be called overfitted."""

_EDGE = "Cohen et al. 2021, arXiv 2103.00065"
_ADAPTIVE_EDGE = "Cohen et al. 2022, arXiv 2207.14484"
_ALONG_STEPS = "LossCurvatureMonitor(['directional']) measures along the steps that it really takes."
_WHOSE = "If it had an optimizer, a whole checkpoint in the folder that is read holds them. RunReport() knows them."
_KEEP = "RunReport() keeps learning rates, as does LearningRateMonitor(logging_interval='step')."


def stability_limit(optimizer: OptimizerSettings) -> float | None:
    """Return the largest sharpness at which an optimizer is stable on a quadratic loss; ``None`` if it is not known.

    For gradient descent with learning rate eta, momentum beta and weight decay w, on the eigenvalue lambda of the
    Hessian: ``2 (1 + beta) / eta - w``, and with Nesterov's momentum ``(2 + 2 beta) / (eta (1 + 2 beta)) - w``. Weight
    decay adds w to every eigenvalue. Adam has a limit for another matrix, its preconditioned Hessian, which the monitor
    does not measure. Of several parameter groups the largest rate eta and decay w give a lower bound of the limit: with
    the rates in a diagonal matrix D, the eigenvalues of ``D^1/2 (H + W) D^1/2`` are at most ``eta (lambda + w)``.

    Source: Cohen et al. 2021, arXiv 2103.00065, equation 1 and appendix B.

    Example:
        >>> round(stability_limit(OptimizerSettings("SGD", 0.1, momentum=0.9, plain=True)), 9)
        38.0
    """
    rate, beta = optimizer.largest_rate, optimizer.momentum
    if not optimizer.plain or not rate > 0 or not 0 <= beta < 1:
        return None
    scale = 1 + 2 * beta if optimizer.nesterov else 1.0
    return 2 * (1 + beta) / (rate * scale) - optimizer.weight_decay


def rule_in_words(optimizer: OptimizerSettings) -> str:
    """Return the formula of `stability_limit` with this optimizer's numbers."""
    decay = f" - weight decay {optimizer.weight_decay:g}" if optimizer.weight_decay else ""
    below = f"{'largest ' if optimizer.groups_differ else ''}learning rate {optimizer.largest_rate:.3g}"
    if not optimizer.momentum:
        return f"2 / {below}{decay}"
    if optimizer.nesterov:
        below = f"({below} (1 + 2 momentum))"
    return f"2 (1 + momentum {optimizer.momentum:g}) / {below}{decay}"


def loss_findings(run: ReportedRun) -> Iterator[RunFinding]:
    """Yield what the sharpness, the steps, the metrics and the swaps of a run say."""
    for curve in run.curves:
        prefix, _, name = curve.name.rpartition("/")
        if name.removesuffix("_finite_differences") == "top_eigenvalue":
            yield from sharpness(curve, optimizers_at(run, curve.steps[-1], prefix))
        elif name.removesuffix("_finite_differences") == "directional_stability":
            yield from steep_steps(curve)
        elif name == "critical_learning_rate":
            yield from critical_rate(curve, rate_at(run, curve.steps[-1], prefix))
        elif prefix.startswith("activation_swap") and name == "relative":
            yield _jump(curve)
        elif is_loss(curve.name):
            yield from diverged(curve)
            if curve.name.lower().startswith("val"):
                yield from overfitted(curve)


def is_loss(name: str) -> bool:
    """Return whether a curve is a loss that the module logged, by its name: ``train_loss``, ``val/loss``, ``Loss``."""
    return is_of_module(name) and "loss" in name.lower() and not is_learning_rate(name)


def is_of_module(name: str) -> bool:
    """Return whether a curve is none of this package's callbacks."""
    return not name.startswith(("curvature/", "activation_swap/", "export/"))


def is_learning_rate(name: str) -> bool:
    """Return whether a curve is a learning rate: of `RunReport`, or of Lightning's LearningRateMonitor."""
    # The latter calls what else it logs lr-SGD-momentum and lr-SGD-weight_decay.
    return name.startswith(("learning_rate/", "lr-")) and not name.endswith(("-momentum", "-weight_decay"))


def optimizers_at(run: ReportedRun, step: int, monitor: str = "") -> tuple[OptimizerSettings, ...]:
    """Return the optimizers of a run with the learning rates that the only one of them had at a step.

    Args:
        run: With its curves.
        step: As loggers number it.
        monitor: Of a `LossCurvatureMonitor`, what stands before its figures: it logs the rate of each measured step.

    Returns:
        The optimizers; NaN is the learning rate of a step at which it is not known.
    """
    if len(run.optimizers) != 1:
        return run.optimizers
    rates = _measured_rates(run, step, monitor) or _logged_rates(run, step)
    return (replace(run.optimizers[0], learning_rate=_first(rates), group_rates=rates if len(rates) > 1 else ()),)


def rate_at(run: ReportedRun, step: int, monitor: str = "") -> float | None:
    """Return the learning rate that a critical one is compared with; ``None`` where several optimizers have one each.

    Args:
        run: With its curves. Its optimizer need not be known: logs say the rate without a checkpoint, too.
        step: As loggers number it.
        monitor: As in `optimizers_at`.

    Returns:
        The rate; NaN where it is not known.

    Example:
        >>> rate = LoggedCurve("curvature/loss/learning_rate", (9,), (0.1,))
        >>> rate_at(ReportedRun(title="", source="", made="", curves=(rate,)), 9, "curvature/loss")
        0.1
    """
    optimizers = optimizers_at(run, step, monitor)
    if optimizers:
        return optimizers[0].learning_rate if len(optimizers) == 1 else None
    if len({_optimizer_of(curve.name) for curve in _rate_curves(run)}) > 1:
        return None
    measured = _measured_rates(run, step, monitor)
    logged = measured or _logged_rates(run, step)
    return _first(logged) if measured or len(logged) == 1 else math.nan  # which group was first is not known


def _first(rates: tuple[float, ...]) -> float:
    """Return the first positive rate, as a monitor takes it; NaN where that may be one that is not known."""
    return next((rate for rate in rates if not rate <= 0), 0.0)


def _measured_rates(run: ReportedRun, step: int, monitor: str) -> tuple[float, ...]:
    """Return the first and the largest learning rate that a monitor logged at a step; empty if it logged none."""
    logged = [run.curve(f"{monitor}/{name}") for name in ("learning_rate", "largest_learning_rate")]
    curves = [curve for curve in logged if curve is not None and curve.steps]
    known = [dict(zip(curve.steps, curve.values, strict=True)) for curve in curves if curve.steps[0] <= step]
    found = tuple(values[step] for values in known if step in values)
    return found if len(found) == len(known) else ()


def _rate_curves(run: ReportedRun) -> list[LoggedCurve]:
    """Return the learning rates that other callbacks logged, of each group once."""
    curves = [curve for curve in run.curves if is_learning_rate(curve.name) and curve.steps]
    own = [curve for curve in curves if curve.name.startswith("learning_rate/")]
    return own or curves  # two callbacks may have logged the same


def _optimizer_of(name: str) -> str:
    """Return a learning rate's name without its group: ``lr-SGD`` of ``lr-SGD/pg1``, as of ``learning_rate/SGD/1``."""
    return re.sub(r"/(pg)?\d+$", "", name)


def _logged_rates(run: ReportedRun, step: int) -> tuple[float, ...]:
    """Return the learning rates of all groups as other callbacks logged them; NaN where they do not say it."""
    chosen = _rate_curves(run)
    ends = (run.optimizers[0].group_rates or (run.optimizers[0].learning_rate,)) if run.optimizers else ()
    ends = ends if len(ends) == len(chosen) else (math.nan,) * len(chosen)
    return tuple(_rate_at(curve, step, end) for curve, end in zip(chosen, ends, strict=True)) or (math.nan,)


def _rate_at(curve: LoggedCurve, step: int, end: float) -> float:
    """Return a learning rate at a step, also between two that are the same; NaN if it is not known.

    Args:
        curve: The rate where it was logged.
        step: Where it is asked for.
        end: The rate when the run was over.
    """
    place = bisect_left(curve.steps, step)
    behind = curve.values[place] if place < len(curve.steps) else end
    if place < len(curve.steps) and curve.steps[place] == step:
        return behind
    is_known = place > 0 and curve.whole is None  # in a curve that was thinned out it may have changed between
    # Event files hold 32 bits.
    return behind if is_known and math.isclose(curve.values[place - 1], behind, rel_tol=1e-6) else math.nan


def sharpness(curve: LoggedCurve, optimizers: tuple[OptimizerSettings, ...]) -> Iterator[RunFinding]:
    """Yield what the Hessian's largest eigenvalue says of the learning rate.

    Args:
        curve: The eigenvalue.
        optimizers: Of the run; with several, nothing is said; without any, that it is not known.

    Yields:
        Findings.

    Example:
        >>> curve = LoggedCurve("curvature/loss/top_eigenvalue", (9,), (19.0,))
        >>> [each.topic for each in sharpness(curve, (OptimizerSettings("SGD", 0.1, plain=True),))]
        ['edge of stability']
    """
    values = [value for value in curve.values if math.isfinite(value)]
    if values and not optimizers:
        yield _no_optimizer(curve.name, values[-1], curve.steps[-1])
    if not values or len(optimizers) != 1:
        return
    (optimizer,), top, step = optimizers, values[-1], curve.steps[-1]
    if optimizer.plain and not optimizer.largest_rate > 0:
        yield _no_rate(curve.name, top, step, optimizer.largest_rate)
        return
    limit = stability_limit(optimizer)
    if limit is None or limit <= 0:
        yield _no_limit(curve.name, top, optimizer)
        return
    ratio, rule = top / limit, rule_in_words(optimizer)
    figures = {"top_eigenvalue": top, "limit": limit, "ratio": ratio}
    said = f"The sharpness was {top:.3g} at step {step}, {ratio:.2g} of the limit {limit:.3g} = {rule}"
    level, text, advice = _beside_limit(said, ratio, groups_differ=optimizer.groups_differ)
    yield RunFinding(level, "edge of stability", curve.name, text, advice, figures, _EDGE)


def _beside_limit(said: str, ratio: float, *, groups_differ: bool) -> tuple[Level, str, str]:
    """Return level, text and advice of a sharpness that is so large a share of the limit."""
    if ratio < NEAR_EDGE:
        return "good", f"{said}: there is room.", ""
    if groups_differ:
        text = (
            f"{said}. The limit is higher where the sharp directions belong to parameter groups with lower rates, so "
            "this does not say whether training is at the edge of stability."
        )
        return "note", text, _ALONG_STEPS
    if ratio < BEYOND_EDGE:
        text = f"{said}: training is at the edge of stability, where the learning rate itself holds the sharpness down."
        return "note", text, "This is common and no fault. A higher learning rate will flatten further or diverge."
    text = f"{said}. On a quadratic loss, full-batch steps would grow along the top eigenvector."
    advice = "Lower the learning rate or warm it up, unless the loss still falls. Batch noise blurs this limit."
    return "warning", text, advice


def _no_optimizer(name: str, top: float, step: int) -> RunFinding:
    """Return what is said of a sharpness where nothing says which optimizer the run had."""
    text = (
        f"The sharpness was {top:.3g} at step {step}. Its limit depends on the optimizer's settings. None are "
        "known of this run, so it is compared with no limit."
    )
    return RunFinding("note", "sharpness", name, text, _WHOSE, {"top_eigenvalue": top}, _EDGE)


def _no_rate(name: str, top: float, step: int, rate: float) -> RunFinding:
    """Return what is said of a sharpness at a step whose learning rate is 0 or not known."""
    said = f"The sharpness was {top:.3g} at step {step}."
    if rate == 0:
        text, advice = f"{said} The learning rate was 0 at that step, so that there is no limit to it.", ""
    else:
        text, advice = f"{said} The learning rate of that step is not known, so it is compared with no limit.", _KEEP
    return RunFinding("note", "sharpness", name, text, advice, {"top_eigenvalue": top}, _EDGE)


def _no_limit(name: str, top: float, optimizer: OptimizerSettings) -> RunFinding:
    """Return what is said of a sharpness that has no known limit."""
    called = optimizer.name or "this optimizer"
    called = "SGD with these settings" if called == "SGD" else called
    text = (
        f"The sharpness was {top:.3g} at the last measurement. The limit 2 / learning rate does not hold for {called}."
    )
    if optimizer.adaptive:
        text += " It is stable by the Hessian in its own preconditioned coordinates."
    source = _ADAPTIVE_EDGE if optimizer.adaptive else _EDGE
    return RunFinding("note", "sharpness", name, text, _ALONG_STEPS, {"top_eigenvalue": top}, source)


def steep_steps(curve: LoggedCurve) -> Iterator[RunFinding]:
    """Yield what ``directional_stability`` = u'Hu / (-2 g'u) says: from 1 on, a step raises the quadratic model."""
    whole = curve.summary
    if not whole.finite:
        return
    share = whole.from_one / whole.finite
    text = (
        f"{whole.from_one} of {whole.finite} measured steps raise the quadratic model of the probe's loss "
        "(u'Hu >= -2 g'u)."
    )
    if share >= STEEP_STEPS:
        advice = "The steps are too long for the curvature along them: lower the learning rate, or use larger batches."
        yield RunFinding("warning", "long steps", curve.name, text, advice, {"share": share}, _EDGE)
    else:
        yield RunFinding("good", "long steps", curve.name, text, "", {"share": share}, _EDGE)


def critical_rate(curve: LoggedCurve, rate: float | None) -> Iterator[RunFinding]:
    """Yield how near the learning rate, of `rate_at`, is to the one at which a step along the update gains nothing."""
    if rate is None or not curve.values or not curve.values[-1] > 0:
        return
    critical = curve.values[-1]
    if not math.isfinite(critical) or rate <= 0:
        return
    if math.isnan(rate):
        text = (
            f"A step along the update brings the probe's loss back to where it was at a learning rate of {critical:.3g}"
            f", at step {curve.steps[-1]}. The learning rate of that step is not known, so the two are not compared."
        )
        figures = {"critical_learning_rate": critical}
        yield RunFinding("note", "critical learning rate", curve.name, text, _KEEP, figures)
        return
    ratio = rate / critical
    text = (
        f"The learning rate was {rate:.3g} at step {curve.steps[-1]}, {ratio:.2g} of the {critical:.3g} at which a "
        "step along the update brings the probe's loss back to where it was."
    )
    figures = {"learning_rate": rate, "critical_learning_rate": critical, "ratio": ratio}
    if ratio >= 1:
        yield RunFinding("warning", "critical learning rate", curve.name, text, "Lower the learning rate.", figures)
    else:
        level: Level = "note" if ratio >= NEAR_EDGE else "good"
        yield RunFinding(level, "critical learning rate", curve.name, text, "", figures)


def diverged(curve: LoggedCurve) -> Iterator[RunFinding]:
    """Yield an alarm for a loss that is no finite number."""
    first = curve.summary.first_not_finite
    if first is not None:
        ends = "" if math.isfinite(curve.values[-1]) else " and at the end"
        text = f"{curve.name} was NaN or infinite first at step {first}{ends}."
        advice = "Lower the learning rate, clip gradients, or look for a logarithm or a division of 0."
        yield RunFinding("alarm", "loss not finite", curve.name, text, advice, {"step": float(first)})


def overfitted(curve: LoggedCurve) -> Iterator[RunFinding]:
    """Yield a note for a loss on validation data that rose again."""
    whole, finite = curve.summary, [value for value in curve.values if math.isfinite(value)]
    if whole.finite < 3 or not finite:
        return
    best, step, last = whole.lowest, whole.lowest_step, finite[-1]
    if best > 0 and last > (1 + WORSE) * best:
        text = f"{curve.name} was lowest at step {step}, with {best:.4g}, and {last:.4g} at the end."
        advice = "Take the checkpoint of that step (ModelCheckpoint(monitor=...)), stop early, or regularise."
        yield RunFinding("note", "overfitting", curve.name, text, advice, {"lowest": best, "last": last})


def _jump(curve: LoggedCurve) -> RunFinding:
    """Return what a swap changed at once."""
    step, jump = curve.steps[-1], curve.values[-1]
    text = f"The swap at step {step} changed the model's output by {100 * jump:.3g} % of its norm, before any training."
    advice = "Lower the learning rate for a while behind the swap." if jump >= WORSE else ""
    return RunFinding("note", "swap", "", text, advice, {"relative_jump": jump})
