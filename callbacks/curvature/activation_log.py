"""What is logged of a measurement of activations, once it has arrived on the host."""

from dataclasses import dataclass

from lightning.pytorch import Trainer

from lit_gelu.callbacks.curvature.activation_heat_map import HeatMapHistory
from lit_gelu.callbacks.curvature.activation_histogram_log import log_histograms
from lit_gelu.callbacks.curvature.activation_measurement import ActivationMeasurement, Figures
from lit_gelu.callbacks.curvature.activation_readout import Readout
from lit_gelu.callbacks.curvature.schedule import EventCost
from lit_gelu.callbacks.log_records import Path, log_figure, log_figures

PREFIX = "curvature"


@dataclass
class ActivationEvent:
    """A measurement whose figures are on their way to the host.

    Args:
        readout: The figures.
        source: What measured, and can read them.
        cost: What it cost.
    """

    readout: Readout
    source: ActivationMeasurement
    cost: EventCost

    def log(self, trainer: Trainer, *, gaussian: bool) -> tuple[Figures, Figures]:
        """Write figures and histograms to every logger; wait for them if they have not arrived.

        Args:
            trainer: The Trainer.
            gaussian: Whether to log what a normal input would give.

        Returns:
            The measured figures, and those of a normal input, by site and statistic.
        """
        measured, predicted = self.source.figures(self.readout, gaussian=gaussian)
        named: dict[Path, float] = {
            (PREFIX, site, name): value for site, row in measured.items() for name, value in row.items()
        }
        named[PREFIX, "activations", "seconds"] = self.cost.seconds
        named[PREFIX, "activations", "interval"] = self.cost.interval
        for site, row in predicted.items():
            named |= {(PREFIX, site, "gaussian", name): value for name, value in row.items()}
        log_figures(trainer, named, self.readout.step)
        bins, counts = self.source.recorder.histogram, self.source.histograms(self.readout)
        if bins is not None:
            log_histograms(trainer, bins, counts, measured, self.readout.step)
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
