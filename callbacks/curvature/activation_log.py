"""What is logged of a measurement of activations, once it has arrived on the host."""

from lightning.pytorch import Trainer

from lit_gelu.callbacks.curvature.activation_events import EventGroup
from lit_gelu.callbacks.curvature.activation_heat_map import HeatMapHistory
from lit_gelu.callbacks.curvature.activation_histogram_log import log_histograms
from lit_gelu.callbacks.curvature.activation_measurement import Figures
from lit_gelu.callbacks.log_records import Path, log_figure, log_figures

PREFIX = "curvature"


def log_group(trainer: Trainer, group: EventGroup, *, gaussian: bool) -> list[tuple[int, Figures, Figures]]:
    """Write figures and histograms to every logger; wait for them if they have not arrived.

    Args:
        trainer: The Trainer.
        group: Measurements.
        gaussian: Whether to log what a normal input would give.

    Returns:
        Of each measurement its step, the measured figures and those of a normal input, by site and statistic.
    """
    readout, source = group.reduce(), group.source
    bins, histograms = source.recorder.histogram, source.histograms(readout)
    logged = []
    for event, (measured, predicted), counts in zip(
        group.events, source.figures(readout, gaussian=gaussian), histograms, strict=True
    ):
        named: dict[Path, float] = {
            (PREFIX, site, name): value for site, row in measured.items() for name, value in row.items()
        }
        named[PREFIX, "activations", "seconds"] = event.seconds
        named[PREFIX, "activations", "interval"] = event.interval
        for site, row in predicted.items():
            named |= {(PREFIX, site, "gaussian", name): value for name, value in row.items()}
        log_figures(trainer, named, event.step)
        if bins is not None:
            log_histograms(trainer, bins, counts, measured, event.step)
        logged.append((event.step, measured, predicted))
    return logged


def log_heat_maps(trainer: Trainer, history: HeatMapHistory) -> None:
    """Draw heat maps and write them to every logger, on rank 0.

    Args:
        trainer: The Trainer.
        history: What to draw.
    """
    if trainer.is_global_zero:
        for statistic in history.statistics:
            figure = history.draw(statistic)
            if figure is not None:
                log_figure(trainer, (PREFIX, "heat_map", statistic), figure)
