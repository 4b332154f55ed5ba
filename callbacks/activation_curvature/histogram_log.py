"""Writing histograms to loggers that take them, and into files for the others."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from lit_gelu.callbacks.loggers import folder_of
from lit_gelu.curvature import HistogramBins
from lit_gelu.files import write_atomically


@rank_zero_only
def log_histograms(
    trainer: Trainer,
    bins: HistogramBins,
    counts: Mapping[str, list[float]],
    statistics: Mapping[str, Any],
    step: int,
    *,
    prefix: Sequence[str] = ("curvature",),
) -> None:
    """Write the histogram of every site, as ``curvature/<site>/histogram``.

    TensorBoard and Weights & Biases show them; MLflow gets a JSON file a step; for other loggers an ``.npz`` file a
    step is written beside their own, ``curvature_histograms/step_00000049.npz``: one array of counts a site (what lies
    below the first bin and above the last at its ends), and ``edges``.

    Args:
        trainer: The Trainer.
        bins: The bins.
        counts: By site, as `HistogramBins.count`.
        statistics: The figures of the same event by site, for the sums that TensorBoard wants.
        step: The step that was measured.
        prefix: What takes the place of ``curvature`` in the names.
    """
    folder_name = "_".join([*prefix, "histograms"])
    path = "/".join(prefix)
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            for site, row in counts.items():
                _to_tensorboard(logger, bins, row, statistics[site], f"{path}/{site}/histogram", step)
        elif isinstance(logger, WandbLogger):
            import numpy as np
            import wandb

            ends = np.asarray(bins.edges)
            histograms = {
                f"{path}/{site}/histogram": wandb.Histogram(np_histogram=(np.asarray(row[1:-1]), ends))
                for site, row in counts.items()
            }
            logger.experiment.log({**histograms, "trainer/global_step": step})
        elif isinstance(logger, MLFlowLogger):
            content = {"edges": bins.edges, "counts": dict(counts)}
            logger.experiment.log_dict(logger.run_id, content, f"{folder_name}/step_{step:08d}.json")
        elif (folder := folder_of(logger)) is not None:
            import numpy as np

            with write_atomically(folder / folder_name / f"step_{step:08d}.npz") as temporary:
                arrays: dict[str, Any] = {"edges": bins.edges, **counts}
                np.savez(temporary, **arrays)


def _to_tensorboard(
    logger: TensorBoardLogger, bins: HistogramBins, row: list[float], figures: Mapping[str, float], tag: str, step: int
) -> None:
    """Write one histogram; the bins beyond the ends are as wide as the one beside them."""
    total = sum(row)
    if not total:
        return
    width = (bins.high - bins.low) / bins.bins
    limits = [*bins.edges, bins.high + width]
    mean, deviation = figures["mean"], figures["standard_deviation"]
    logger.experiment.add_histogram_raw(
        tag,
        min=bins.low - width,
        max=bins.high + width,
        num=total,
        sum=total * mean,
        sum_squares=total * (deviation**2 + mean**2),
        bucket_limits=limits,
        bucket_counts=row,
        global_step=step,
    )
