"""What decides whether a file in int8 is good enough."""

import math
from collections.abc import Iterator, Sequence

from lit_gelu.export.errors import ExportOptionError
from lit_gelu.export.parity.task_metrics import TaskMetric
from lit_gelu.export.quantization.report import Criterion, OutputNoise

MAX_DIFFERENCE = 0.01  # one row in a hundred
MIN_SQNR = 20.0  # decibels: an error of a tenth of the output, root of the mean square


def criteria(
    metrics: Sequence[TaskMetric],
    outputs: Sequence[OutputNoise],
    metric: str | None,
    max_difference: float,
    min_top1: float | None,
    min_sqnr: float | None,
) -> list[Criterion]:
    """Return what decides: a metric (the error rate, else the loss), else for each output what it can be judged by."""
    found = [_of_metric(one, max_difference) for one in _deciding(metrics, metric)]
    others = [] if found else [output for output in outputs if output.top1_agreement is None]
    agreements = [output.top1_agreement for output in outputs if output.top1_agreement is not None]
    if min_top1 is not None and not agreements:
        raise ExportOptionError("min_top1= needs an output of logits, [batch, classes]. Use min_sqnr=.")
    if not found and agreements:
        changed = 1 - min(agreements)
        found = [Criterion("rows whose largest logit is another one", changed, max_difference, "at most")]
    if min_top1 is not None:
        found.append(Criterion("top-1 agreement", min(agreements), min_top1, "at least"))
    noisy = []
    for output in others:  # noise says nothing of numbers that are names, such as classes
        if output.changed_share is None:
            noisy.append(output)
        else:
            name = f"entries of {output.output} that differ"
            found.append(Criterion(name, output.changed_share, max_difference, "at most"))
    least = MIN_SQNR if min_sqnr is None else min_sqnr
    judged = noisy if min_sqnr is None else outputs
    return found + [Criterion(f"SQNR of {output.output}, dB", output.sqnr, least, "at least") for output in judged]


def _deciding(metrics: Sequence[TaskMetric], name: str | None) -> Iterator[TaskMetric]:
    """Yield the metric that decides, if there is one."""
    known = {metric.name: metric for metric in metrics}
    if name is not None and name not in known:
        raise ExportOptionError(
            f"There is no test metric {name!r} to decide by. There are: {', '.join(known) or 'none'}."
        )
    for candidate in ("test_error", "test_loss") if name is None else (name,):
        if candidate in known:
            yield known[candidate]
            return


def _of_metric(metric: TaskMetric, max_difference: float) -> Criterion:
    """Return the criterion of one metric."""
    if "acc" in metric.name:
        return Criterion(f"{metric.name}, decrease", -metric.difference, max_difference, "at most")
    if "loss" not in metric.name:
        return Criterion(f"{metric.name}, increase", metric.difference, max_difference, "at most")
    share = metric.difference / abs(metric.pytorch) if metric.pytorch else math.inf * metric.difference
    return Criterion(f"{metric.name}, increase in units of PyTorch's", share, max_difference, "at most")
