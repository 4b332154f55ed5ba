"""What is logged of a measurement of activations, once it has arrived on the host."""

from lightning.pytorch import Trainer

from lit_gelu.callbacks.curvature.activation_events import ActivationEvent
from lit_gelu.callbacks.curvature.activation_heat_map import HeatMapHistory
from lit_gelu.callbacks.curvature.activation_histogram_log import log_histograms
from lit_gelu.callbacks.curvature.activation_measurement import Figures
from lit_gelu.callbacks.log_records import Path, log_figure, log_figures

PREFIX = "curvature"


def log_event(trainer: Trainer, event: ActivationEvent, *, gaussian: bool) -> tuple[Figures, Figures]:
    """Write figures and histograms to every logger; wait for them if they have not arrived.

    Args:
        trainer: The Trainer.
        event: The measurement.
        gaussian: Whether to log what a normal input would give.

    Returns:
        The measured figures, and those of a normal input, by site and statistic.
    """
    readout = event.reduce()
    measured, predicted = event.source.figures(readout, gaussian=gaussian)
    named: dict[Path, float] = {
        (PREFIX, site, name): value for site, row in measured.items() for name, value in row.items()
    }
    named[PREFIX, "activations", "seconds"] = event.seconds
    named[PREFIX, "activations", "interval"] = event.interval
    for site, row in predicted.items():
        named |= {(PREFIX, site, "gaussian", name): value for name, value in row.items()}
    log_figures(trainer, named, event.step)
    bins = event.source.recorder.histogram
    if bins is not None:
        log_histograms(trainer, bins, event.source.histograms(readout), measured, event.step)
    return measured, predicted


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
