"""Which runs are to be made, and of several identical ones one."""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gelu_paper.errors import PaperArgumentError
from gelu_paper.protocol.cells import (
    PRECISION,
    Cell,
    check_same_configuration,
    expand,
    fingerprint,
    identical_cells,
)
from gelu_paper.protocol.experiments import Experiment
from gelu_paper.protocol.presets import preset as experiments_of
from gelu_paper.records.run_record import RunRecord
from gelu_paper.results.one_protocol import check_same_protocol
from gelu_paper.results.selection import choices
from gelu_paper.shards import Shard


@dataclass(frozen=True)
class RunRequest:
    """What was asked for; empty means all."""

    preset: str
    only: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    precision: str = PRECISION
    table: Mapping[str, Experiment] | None = None  # experiments of one's own, by name; None means the preset's
    shard: Shard | None = None  # the part of the runs that is made here; None means all

    def all_experiments(self) -> Mapping[str, Experiment]:
        """Return the experiments there are to choose from, by name."""
        return experiments_of(self.preset) if self.table is None else self.table

    def experiments(self) -> list[Experiment]:
        """Return what was asked for, and what its learning rates come from, in the preset's order."""
        table = self.all_experiments()
        _check_names("experiment", self.only, table)
        wanted = set(self.only or table)
        wanted |= {rates for name in wanted if (rates := table[name].learning_rate_from) is not None}
        chosen = [experiment for name, experiment in table.items() if name in wanted]
        _check_names("arm", self.arms, {arm: None for experiment in chosen for arm in experiment.arms})
        return chosen

    def cells(self, experiment: Experiment, learning_rates: Mapping[str, float] | None = None) -> list[Cell]:
        """Return the cells of an experiment that were asked for."""
        # A learning rate is searched with all seeds of the search, whatever seeds are trained with it.
        searches = {other.learning_rate_from for other in self.all_experiments().values()}
        seeds = None if experiment.name in searches else self.seeds
        return expand(
            experiment,
            self.preset,
            arms=self.arms or None,
            seeds=seeds or None,
            learning_rates=learning_rates,
            precision=self.precision,
        )

    def runs(self, experiment: Experiment) -> int:
        """Return how many runs of an experiment were asked for, also if their learning rates are not known yet."""
        return len(self.cells(experiment, dict.fromkeys(experiment.arms, 0.0)))

    def first_cells(self) -> list[Cell]:
        """Return the shard's cells of all experiments whose learning rates are not searched."""
        first = [experiment for experiment in self.experiments() if experiment.learning_rate_from is None]
        cells = [cell for experiment in first for cell in self.cells(experiment)]
        return cells if self.shard is None else self.shard.of_cells(cells)

    def later_cells(self, experiment: Experiment, learning_rates: Mapping[str, float] | None = None) -> list[Cell]:
        """Return the shard's cells of an experiment with searched learning rates, whatever rates if none are given."""
        # Which cells are the shard's does not depend on which rates are known by now.
        known = dict.fromkeys(experiment.arms, 0.0) if learning_rates is None else learning_rates
        cells = self.cells(experiment, dict.fromkeys(experiment.arms, 0.0) | dict(known))
        mine = cells if self.shard is None else self.shard.of_places(cells)
        return [cell for cell in mine if cell.arm in known]


@dataclass(frozen=True)
class Plan:
    """Runs to be made."""

    finished: tuple[str, ...]  # keys of those that are in the results already
    shared: tuple[RunRecord, ...]  # known because an identical run is in the results
    identical: tuple[tuple[Cell, ...], ...]  # the first of each is trained, the others are identical to it


def plan(cells: Iterable[Cell], records: Mapping[str, RunRecord]) -> Plan:
    """Plan the runs for some cells."""
    finished, todo, cells = [], [], list(cells)
    for cell in cells:
        record = records.get(cell.key)
        if record is None:
            todo.append(cell)
        else:
            check_same_configuration(cell, record)
            finished.append(cell.key)
    check_same_protocol(cells, records.values())
    made = {
        fingerprint(record.config, record.seed): record for record in records.values() if record.shared_from is None
    }
    shared, left = [], []
    for cell in todo:
        record = made.get(cell.fingerprint)
        if record is not None and cell.accepts(record):
            shared.append(share(record, cell))
        else:
            left.append(cell)
    return Plan(tuple(finished), tuple(shared), tuple(tuple(same) for same in identical_cells(left)))


def share(record: RunRecord, cell: Cell) -> RunRecord:
    """Return an identical run's record under a cell's name; ``shared_from`` says whose numbers they are."""
    if record.key == cell.key:
        return record
    return replace(
        record,
        key=cell.key,
        preset=cell.preset,
        experiment=cell.experiment,
        arm=cell.arm,
        setting=dict(cell.setting),
        config=dict(cell.config),
        robustness=record.robustness if cell.robustness_levels else None,
        shared_from=record.key,
    )


def searched_learning_rates(
    search: Experiment, cells: Sequence[Cell], records: Mapping[str, RunRecord]
) -> dict[str, float]:
    """Return the learning rates that a search chose for the arms all of whose runs are finished.

    An arm that diverged at every rate is not among them.
    """
    rates = {}
    for arm in search.arms:
        keys = [cell.key for cell in cells if cell.arm == arm]
        if keys and all(key in records for key in keys):
            (choice,) = choices(search, arm, [records[key] for key in keys])
            validation = choice.chosen.validation
            if validation is None or math.isfinite(validation.median):
                rates[arm] = choice.chosen.learning_rate
    return rates


def _check_names(what: str, given: Iterable[str], accepted: Mapping[str, object]) -> None:
    """Refuse names that do not exist."""
    for name in given:
        if name not in accepted:
            near = difflib.get_close_matches(name, accepted, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise PaperArgumentError(f"There is no {what} {name!r}.{hint} Accepted: {', '.join(accepted)}.")
