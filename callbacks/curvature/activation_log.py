"""What is logged of measurements of activations, once they have arrived on the host, and what is remembered of them."""

import copy
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Trainer

from lit_gelu.callbacks.curvature.activation_events import EventGroup, EventQueue
from lit_gelu.callbacks.curvature.activation_heat_map import HeatMapHistory
from lit_gelu.callbacks.curvature.activation_histogram_log import log_histograms
from lit_gelu.callbacks.curvature.activation_measurement import Figures
from lit_gelu.callbacks.log_records import Path, log_figure, log_figures

PREFIX = "curvature"


class ActivationLog:
    """Writes measurements to the loggers of a Trainer, and keeps the last one and what heat maps are drawn from.

    Args:
        heat_maps: As `ActivationCurvatureMonitor`, like the next.
        gaussian: Whether to log what a normal input would give.

    Attributes:
        events: Measurements that are not logged yet.
        latest: The figures of the last one that was, by site and statistic.
        latest_gaussian: The same for a normal input.
        heat_maps: The history of all.
    """

    def __init__(self, heat_maps: Sequence[str], *, gaussian: bool) -> None:
        self.events = EventQueue()
        self.latest: Figures = {}
        self.latest_gaussian: Figures = {}
        self.heat_maps = HeatMapHistory(heat_maps)
        self._gaussian = gaussian

    def clear(self) -> None:
        """Forget what is not logged, and the last measurement."""
        self.events.clear()
        self.latest, self.latest_gaussian = {}, {}

    def write(self, trainer: Trainer, *, wait: bool = True) -> list[Figures]:
        """Log what has arrived on the host.

        Args:
            trainer: The Trainer.
            wait: Whether to log all that was measured, when it has arrived; to be called on all ranks then.

        Returns:
            The measured figures, the oldest first.
        """
        written = []
        for group in self.events.arrived(wait=wait):
            for step, measured, predicted in _log_group(trainer, group, gaussian=self._gaussian):
                self.latest, self.latest_gaussian = measured, predicted
                self.heat_maps.add(step, measured)
                written.append(measured)
        return written

    def draw(self, trainer: Trainer) -> None:
        """Draw the heat maps and write them to every logger, on rank 0.

        Args:
            trainer: The Trainer.
        """
        if trainer.is_global_zero:
            for statistic in self.heat_maps.statistics:
                figure = self.heat_maps.draw(statistic)
                if figure is not None:
                    log_figure(trainer, (PREFIX, "heat_map", statistic), figure)

    def state_dict(self) -> dict[str, Any]:
        """Return the history that a resumed run goes on with; to be called on all ranks.

        What is not logged yet is logged in this run, and seen in the next one's heat maps.
        """
        heat_maps = copy.deepcopy(self.heat_maps)
        for group in self.events.reduce():
            figures = group.source.figures(group.reduce(), gaussian=False)
            for event, (measured, _) in zip(group.events, figures, strict=True):
                heat_maps.add(event.step, measured)
        return heat_maps.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with a history.

        Args:
            state_dict: As `state_dict` returned.
        """
        self.heat_maps.load_state_dict(state_dict)


def _log_group(trainer: Trainer, group: EventGroup, *, gaussian: bool) -> list[tuple[int, Figures, Figures]]:
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
