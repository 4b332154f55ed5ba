"""`GridRunner`: makes the runs of a request that are not in the results yet; of several identical ones one."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from filelock import FileLock, Timeout

from gelu_paper.cells import Cell, check_configuration
from gelu_paper.engines import Outcome
from gelu_paper.experiments import Experiment
from gelu_paper.records import (
    RECORDS_FILE,
    RunRecord,
    append_record,
    check_one_protocol,
    cut_unfinished_line,
    differences,
    fingerprint,
    protocol,
    read_records,
)
from gelu_paper.request import Request
from gelu_paper.results import choices
from gelu_paper.training import prepare
from lit_gelu.errors import ArgumentError, DataError, UnsupportedRunError

Engine = Callable[[Sequence[Cell]], Iterator[Outcome]]  # makes runs, several at a time


@dataclass
class Tally:
    """What became of a request."""

    finished: int = 0  # were in the results already
    trained: int = 0
    copied: int = 0  # have the numbers of an identical run
    missing: dict[str, str] = field(default_factory=dict)  # from an experiment to why its data are not there
    failed: dict[str, str] = field(default_factory=dict)  # from a run to what went wrong


class GridRunner:
    """Makes runs and records each as soon as it ends, in a folder that one process at a time writes to.

    Args:
        request: Which runs.
        folder: Of the results: ``runs.jsonl`` in it has a line for each run.
        engine: Makes runs.
        root: Folder of the data; ``None`` leaves it to the data modules.
        report: Called with a line of text for each run.
    """

    def __init__(
        self,
        request: Request,
        folder: Path,
        engine: Engine,
        root: str | None = None,
        report: Callable[[str], object] = print,
    ) -> None:
        self.request = request
        self.folder = folder
        self.engine = engine
        self.root = root
        self.report = report
        self.records: dict[str, RunRecord] = {}
        self.tally = Tally()

    def run(self) -> Tally:
        """Make the runs; one that fails is no reason to stop.

        Returns:
            What became of them.

        Raises:
            ArgumentError: If a finished run has another configuration, or its experiment another protocol.
            UnsupportedRunError: If another process writes to the folder.
        """
        experiments = self.request.experiments()
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileLock(self.folder / ".lock").acquire(timeout=0)
        except Timeout:
            raise UnsupportedRunError(
                f"Another command writes to {str(self.folder)!r}. Wait for it, or give another folder (--results)."
            ) from None
        with lock:
            cut_unfinished_line(self.folder)
            self.records = records_of(self.folder)
            direct = [experiment for experiment in experiments if experiment.learning_rate_from is None]
            self._make(direct, [cell for experiment in direct for cell in self.request.cells(experiment)])
            for experiment in experiments:
                if experiment.learning_rate_from is not None:
                    self._make([experiment], self._searched(experiment))
        return self.tally

    def _searched(self, experiment: Experiment) -> list[Cell]:
        """Return the runs of an experiment at the learning rates that its search chose."""
        rates = searched_rates(experiment, self.request, self.records)
        for arm in experiment.arms:
            if arm not in rates and arm in (self.request.arms or experiment.arms):
                self.tally.failed[f"{experiment.name}/{arm}"] = (
                    f"no learning rate: its runs of {experiment.learning_rate_from} are not complete, or all diverged"
                )
        return self.request.cells(experiment, rates)

    def _make(self, experiments: Sequence[Experiment], cells: Sequence[Cell]) -> None:
        """Make runs whose learning rates are known."""
        check_same_protocol(cells, self.records.values())
        groups, copies = missing_runs(cells, self.records)
        self.tally.finished += sum(cell.key in self.records for cell in cells)
        for cell, record in copies:
            self._record(copy_of(record, cell))
        absent = self._prepare(experiments, [group[0] for group in groups])
        of_cell = {group[0].key: group for group in groups if group[0].experiment not in absent}
        self.report(f"{self.tally.finished} runs are finished, {len(of_cell)} are to be trained")
        for cell, outcome in self.engine([group[0] for group in of_cell.values()]) if of_cell else ():
            if isinstance(outcome, RunRecord):
                self._record(outcome)
                for other in of_cell[cell.key][1:]:
                    self._record(copy_of(outcome, other))
            else:
                self.tally.failed[cell.key] = f"{type(outcome).__name__}: {outcome}"
                self.report(f"{cell.key}: failed")

    def _prepare(self, experiments: Sequence[Experiment], cells: Sequence[Cell]) -> set[str]:
        """Prepare the data of runs, and return the experiments whose data are not there."""
        for experiment in experiments:
            if any(cell.experiment == experiment.name for cell in cells):
                data = {"class_path": experiment.data, "init_args": experiment.data_args}
                try:
                    prepare(data, experiment.data_requires, self.root)
                except (DataError, ImportError) as error:
                    self.tally.missing[experiment.name] = str(error)
        return set(self.tally.missing)

    def _record(self, run: RunRecord) -> None:
        """Write a run, and say so."""
        same = [other for other in self.records.values() if other.experiment == run.experiment]
        check_one_protocol([*same[:1], run])
        append_record(self.folder, run)
        self.records[run.key] = run
        if run.shared_from is None:
            self.tally.trained += 1
        else:
            self.tally.copied += 1
        last = ", ".join(f"{name} {curve.value[-1]:.4g}" for name, curve in run.curves.items())
        self.report(f"{run.key}: {run.shared_from or run.status}, {last}")


def records_of(folder: Path) -> dict[str, RunRecord]:
    """Return the records of a folder by their keys; none where there is no file of them."""
    return {run.key: run for run in read_records(folder)} if (folder / RECORDS_FILE).exists() else {}


def missing_runs(
    cells: Iterable[Cell], records: Mapping[str, RunRecord]
) -> tuple[list[list[Cell]], list[tuple[Cell, RunRecord]]]:
    """Return which runs are to be trained, and which have the numbers of a finished run.

    Args:
        cells: Those that were asked for.
        records: What is finished, by key.

    Returns:
        Groups of identical runs, of which the first measures all that any of them does; and runs with the identical
        one that is finished.

    Raises:
        ArgumentError: If a finished run has another configuration.
    """
    # Of identical records one with noise counts: it has all that the others have.
    ordered = sorted(records.values(), key=lambda run: run.robustness is not None)
    finished = {fingerprint(run.config, run.seed): run for run in ordered}
    groups: dict[str, list[Cell]] = {}
    copies = []
    for cell in cells:
        if cell.key in records:
            check_configuration(cell, records[cell.key])
        elif cell.fingerprint in finished and cell.accepts(finished[cell.fingerprint]):
            copies.append((cell, finished[cell.fingerprint]))
        else:
            groups.setdefault(cell.fingerprint, []).append(cell)
    return [sorted(group, key=lambda cell: not cell.robustness_levels) for group in groups.values()], copies


def copy_of(record: RunRecord, cell: Cell) -> RunRecord:
    """Return the record of a run that is identical to another one."""
    return replace(
        record,
        key=cell.key,
        preset=cell.preset,
        experiment=cell.experiment,
        arm=cell.arm,
        setting=dict(cell.setting),
        config={**record.config, "measurement": dict(cell.config["measurement"])},
        robustness=record.robustness if cell.robustness_levels else None,
        shared_from=record.shared_from or record.key,
    )


def searched_rates(experiment: Experiment, request: Request, records: Mapping[str, RunRecord]) -> dict[str, float]:
    """Return, from arm to rate, the learning rates that the validation set chose in a search that is complete."""
    (search,) = [one for one in request.experiments() if one.name == experiment.learning_rate_from]
    cells, rates = request.cells(search), {}
    for arm in search.arms:
        keys = [cell.key for cell in cells if cell.arm == arm]
        if keys and all(key in records for key in keys):
            (choice,) = choices(search, [records[key] for key in keys])
            if choice.validation is not None and math.isfinite(choice.validation.median()):
                rates[arm] = choice.learning_rate
    return rates


def check_same_protocol(cells: Sequence[Cell], records: Iterable[RunRecord]) -> None:
    """Refuse to make runs beside those of another protocol: no table could show both."""
    firsts = {cell.experiment: cell for cell in reversed(cells)}
    for record in records:
        cell = firsts.get(record.experiment)
        if cell is None:
            continue
        varied = {*cell.setting, *record.setting}
        one = {"preset": record.preset, **protocol(record.config, {}, varied)}
        other = {"preset": cell.preset, **protocol(cell.config, {}, varied)}
        if text := differences(one, other):
            raise ArgumentError(
                f"The results have runs of {cell.experiment} by another protocol ({text}; the run {record.key!r}). "
                "Give another folder (--results): no table can show both."
            )
