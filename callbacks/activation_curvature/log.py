"""What is logged of measurements of activations, once they have arrived on the host, and what is remembered of them."""

import copy
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Callback, Trainer

from lit_gelu.callbacks.activation_curvature.events import EventGroup, EventQueue
from lit_gelu.callbacks.activation_curvature.histogram_log import log_histograms
from lit_gelu.callbacks.errors import CallbackArgumentError
from lit_gelu.callbacks.loggers import Path, log_figure, log_figures
from lit_gelu.callbacks.trainer_facts import callbacks_of
from lit_gelu.curvature.activation_measurement import Figures
from lit_gelu.curvature.plots import HeatMapHistory

PREFIX = "curvature"


def refuse_namesake(trainer: Trainer, monitor: Callback, name: str) -> None:
    """Refuse another monitor of a Trainer that writes under the same names.

    Args:
        trainer: The Trainer.
        monitor: The monitor.
        name: Its name.

    Raises:
        CallbackArgumentError: If there is one.
    """
    others = [callback for callback in callbacks_of(trainer) if isinstance(callback, type(monitor))]
    if any(getattr(other, "name", None) == name for other in others if other is not monitor):
        raise CallbackArgumentError(
            f"Two monitors of activations are both named {name!r}, and would overwrite each other's figures and heat "
            "maps. Give one of them a name: ActivationCurvatureMonitor(name='encoder', ...) logs as "
            "curvature/encoder/..."
        )


class ActivationLog:
    """Writes measurements to the loggers of a Trainer, and keeps the last one and what heat maps are drawn from.

    Args:
        heat_maps: As `ActivationCurvatureMonitor`, like the rest.
        gaussian: Whether to log what a normal input would give.
        name: Second part of all names; "" for none.

    Attributes:
        events: Measurements that are not logged yet.
        latest: The figures of the last one that was, by site and statistic.
        latest_gaussian: The same for a normal input.
        heat_maps: The history of all.
    """

    def __init__(self, heat_maps: Sequence[str], *, gaussian: bool, name: str = "") -> None:
        self.events = EventQueue()
        self.latest: Figures = {}
        self.latest_gaussian: Figures = {}
        self.heat_maps = HeatMapHistory(heat_maps)
        self._gaussian = gaussian
        self._prefix = (PREFIX, name) if name else (PREFIX,)

    def clear(self) -> None:
        """Forget what is not logged, and the last measurement."""
        self.events.clear()
        self.latest, self.latest_gaussian = {}, {}

    def start_anew(self) -> None:
        """Forget the history, too."""
        self.clear()
        self.heat_maps = HeatMapHistory(self.heat_maps.statistics)

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
            for step, measured, predicted in self._write_group(trainer, group):
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
                    log_figure(trainer, (*self._prefix, "heat_map", statistic), figure)

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

    def _write_group(self, trainer: Trainer, group: EventGroup) -> list[tuple[int, Figures, Figures]]:
        """Write figures and histograms to every logger; wait for them if they have not arrived.

        Returns:
            Of each measurement its step, the measured figures and those of a normal input, by site and statistic.
        """
        readout, source, prefix = group.reduce(), group.source, self._prefix
        bins, histograms = source.recorder.histogram, source.histograms(readout)
        written = []
        for event, (measured, predicted), counts in zip(
            group.events, source.figures(readout, gaussian=self._gaussian), histograms, strict=True
        ):
            named: dict[Path, float] = {
                (*prefix, site, name): value for site, row in measured.items() for name, value in row.items()
            }
            named[*prefix, "activations", "seconds"] = event.seconds
            named[*prefix, "activations", "interval"] = event.interval
            for site, row in predicted.items():
                named |= {(*prefix, site, "gaussian", name): value for name, value in row.items()}
            log_figures(trainer, named, event.step)
            if bins is not None:
                log_histograms(trainer, bins, counts, measured, event.step, prefix=prefix)
            written.append((event.step, measured, predicted))
        return written
