"""How long the runs that are left will take."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping

from gelu_paper.protocol.experiments import Experiment


class Estimate:
    """Seconds of a run of each experiment: measured where one was made, else scaled from what was expected."""

    def __init__(self, experiments: Mapping[str, Experiment]) -> None:
        self._expected = {
            name: experiment.seconds or experiment.training_flop for name, experiment in experiments.items()
        }
        self._measured: dict[str, list[float]] = defaultdict(list)

    def add(self, experiment: str, seconds: float) -> None:
        """Hear of a run that was made."""
        self._measured[experiment].append(seconds)

    def rest(self, shares: Iterable[tuple[str, float]], workers: int) -> float | None:
        """Return how long runs take of which the given shares, 0 to 1, are left, or ``None`` if too little is known."""
        seconds = 0.0
        for experiment, share in shares:
            whole = self._of(experiment)
            if whole is None:
                return None
            seconds += share * whole
        return seconds / workers

    def _of(self, experiment: str) -> float | None:
        if self._measured[experiment]:
            return statistics.fmean(self._measured[experiment])
        factors = [
            seconds / expected
            for name, all_seconds in self._measured.items()
            if (expected := self._expected.get(name)) is not None
            for seconds in all_seconds
        ]
        expected = self._expected.get(experiment)
        return expected * statistics.fmean(factors) if factors and expected is not None else None
