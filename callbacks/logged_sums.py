"""What a module has logged: an epoch's sums so far, and the latest values. Lightning's checkpoints do not hold it."""

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.connectors.logger_connector.result import (
    _Metadata,
    _ResultCollection,
    _ResultMetric,
    _Sync,
)
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from lit_gelu.errors import CheckpointError

# `self.log` compares the very functions with those of its first call: torch's are others than Python's.
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    **{f"torch.{name}": getattr(torch, name) for name in ("mean", "sum", "min", "max")},
    **{f"builtins.{function.__name__}": function for function in (sum, min, max)},
}
_NAMES = {function: name for name, function in _REDUCTIONS.items()}
_TEXTS = ("fx", "name")
_FLAGS = ("prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx")
_DAMAGED = (
    "What ExactResume kept of the logged metrics is damaged. Resume from another checkpoint, or leave ExactResume out."
)

LoggedSums = dict[str, dict[str, Any]]
"""By Lightning's key of a metric: the arguments of ``self.log`` that it had, ``value``, ``count``, as plain data."""


def logged_sums(trainer: Trainer) -> LoggedSums:
    """Return the sums of the training epoch, of this rank; those of torchmetrics are the module's own state."""
    return {key: _plain(metric) for key, metric in _results(trainer).items() if _is_kept(metric)}


def logged_metrics(trainer: Trainer) -> dict[str, Tensor] | None:
    """Return a fit's latest values by name, as callbacks see them; of validations, and of epochs before, too."""
    if trainer.state.fn != TrainerFn.FITTING:
        return None
    metrics = trainer.callback_metrics.items()
    return {name: value.detach().cpu().clone() for name, value in metrics if _is_scalar(value)}


def put_metrics_back(trainer: Trainer, module: LightningModule, metrics: dict[str, Tensor]) -> dict[str, Tensor]:
    """Let callbacks see what they saw last, until it is logged again; return that."""
    found = {name: value.to(module.device) for name, value in metrics.items()}
    trainer.callback_metrics.update(found)
    return found


def put_back(trainer: Trainer, module: LightningModule, sums: LoggedSums) -> None:
    """Let the epoch's sums go on from those that a checkpoint holds."""
    if not sums:
        return
    _results(trainer).update({key: _metric(entry, trainer, module.device) for key, entry in sums.items()})
    # Lightning forgets a hook's sums at the first batch that it sees, and takes None for the time before that.
    trainer._logger_connector._first_loop_iter = True


def forget(trainer: Trainer) -> None:
    """Begin with no sums: the epoch that they are of is over."""
    _results(trainer).clear()
    trainer._logger_connector._first_loop_iter = None


def check_metrics(metrics: object) -> None:
    """Refuse what `logged_metrics` does not return."""
    if metrics is None:
        return
    if not isinstance(metrics, dict) or not all(
        isinstance(name, str) and _is_scalar(value) for name, value in metrics.items()
    ):
        raise CheckpointError(_DAMAGED)


def check_sums(sums: LoggedSums) -> None:
    """Refuse what `logged_sums` does not return."""
    for entry in sums.values():
        fits = (
            isinstance(entry, dict)
            and all(isinstance(entry.get(name), str) for name in _TEXTS)
            and all(isinstance(entry.get(name), bool) for name in (*_FLAGS, "sync_dist", "rank_zero_only"))
            and entry.get("reduce_fx") in _REDUCTIONS
            and all(_is_scalar(entry.get(name)) for name in ("value", "count"))
        )
        if not fits:
            raise CheckpointError(_DAMAGED)


def _is_scalar(value: object) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1


def _results(trainer: Trainer) -> _ResultCollection:
    return trainer.fit_loop.epoch_loop._results


def _is_kept(metric: _ResultMetric) -> bool:
    """Tell whether a metric is a sum over the epoch that plain data can say."""
    has_no_group = metric.meta.sync.group is None
    return metric.is_tensor and metric.meta.on_epoch and has_no_group and not metric.has_reset


def _plain(metric: _ResultMetric) -> dict[str, Any]:
    meta, value = metric.meta, metric.value
    count = metric.cumulated_batch_size if meta.is_mean_reduction else torch.zeros(())
    named = {name: getattr(meta, name) for name in (*_TEXTS, *_FLAGS)}
    how = {"reduce_fx": _NAMES[meta.reduce_fx], "sync_dist": meta.sync.should}
    kept = {"value": value.detach().cpu().clone(), "count": count.detach().cpu().clone()}
    return {**named, **how, "rank_zero_only": meta.sync.rank_zero_only, **kept}


def _metric(entry: dict[str, Any], trainer: Trainer, device: torch.device) -> _ResultMetric:
    """Return the metric that ``self.log`` goes on with: it compares the arguments with those of the first call."""
    named = {name: entry[name] for name in (*_TEXTS, *_FLAGS)}
    meta = _Metadata(**named, reduce_fx=_REDUCTIONS[entry["reduce_fx"]])
    meta.sync = _Sync(fn=trainer.strategy.reduce, _should=entry["sync_dist"], rank_zero_only=entry["rank_zero_only"])
    metric = _ResultMetric(meta, is_tensor=True).to(device)
    metric.value = entry["value"].to(device)
    if meta.is_mean_reduction:
        metric.cumulated_batch_size = entry["count"].to(device)
    metric._update_count = 1  # else torchmetrics warns of a value that was never updated
    return metric
