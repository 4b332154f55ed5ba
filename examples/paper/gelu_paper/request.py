"""`Request`: which runs were asked for."""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gelu_paper.cells import PRECISION, Cell, expand
from gelu_paper.experiments import Experiment, preset, variant
from lit_gelu.errors import ArgumentError


@dataclass(frozen=True)
class Request:
    """Which runs were asked for; empty means all."""

    preset: str = "quick"
    only: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    precision: str = PRECISION
    epochs: int | None = None  # after which runs end, where they are longer
    clusters: str | None = None  # file of word clusters in the place of the tweets' word vectors

    def experiments(self) -> list[Experiment]:
        """Return what was asked for, and before it what its learning rates come from.

        Raises:
            ArgumentError: If a name, a seed or the number of epochs is none of theirs.
        """
        table = preset(self.preset)
        check_names("experiment", self.only, table)
        names = set(self.only or table)
        names |= {rates for name in names if (rates := table[name].learning_rate_from) is not None}
        chosen = [
            variant(experiment, clusters=self.clusters, epochs=self.epochs)
            for name, experiment in table.items()
            if name in names
        ]
        check_names("arm", self.arms, {arm: None for experiment in chosen for arm in experiment.arms})
        most = max(experiment.seeds for experiment in chosen)
        if any(not 0 <= seed < most for seed in self.seeds):
            raise ArgumentError(f"seeds {self.seeds} given; accepted: 0 to {most - 1}.")
        if self.epochs is not None and self.epochs < 1:
            raise ArgumentError(f"epochs={self.epochs} given; accepted: 1 and above.")
        return chosen

    def cells(self, experiment: Experiment, rates: Mapping[str, float] | None = None) -> list[Cell]:
        """Return the runs of an experiment that were asked for."""
        # A learning rate is searched with all seeds of the search, whatever seeds are trained with it.
        searches = {other.learning_rate_from for other in preset(self.preset).values()}
        seeds = () if experiment.name in searches else self.seeds
        return expand(
            experiment, self.preset, arms=self.arms, seeds=seeds, learning_rates=rates, precision=self.precision
        )


def check_names(kind: str, names: Collection[str], accepted: Collection[str]) -> None:
    """Refuse names that nothing has, and suggest the nearest."""
    for name in names:
        if name not in accepted:
            near = difflib.get_close_matches(name, accepted, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ArgumentError(f"There is no {kind} {name!r}.{hint} Accepted: {', '.join(accepted)}.")
