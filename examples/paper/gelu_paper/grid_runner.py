"""Making the runs of a plan: several at a time, the finished ones recorded at once, a failed one no reason to stop."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gelu_paper.group_planning import GroupPlanner
from gelu_paper.jobs import CellGroup, Failure, Job, Message, Preparation, Progress, Restart, cells_of
from gelu_paper.planning import RunRequest, plan, searched_learning_rates, share
from gelu_paper.protocol.cells import Cell, check_same_configuration, fingerprint
from gelu_paper.protocol.experiments import Experiment
from gelu_paper.records.run_record import RunRecord
from gelu_paper.records.run_store import RecordStore
from gelu_paper.results.one_protocol import check_same_data
from gelu_paper.training.unfinished_groups import GROUPS_FOLDER, forget_group, forget_groups, unfinished_groups

if TYPE_CHECKING:
    from gelu_paper.pools.job_pool import JobPool
    from gelu_paper.progress import GridProgress

_SECONDS_BETWEEN_UPDATES = 0.5


@dataclass
class Tally:
    """What became of a request: how many runs, and the jobs that failed."""

    finished: int = 0  # were in the results already
    trained: int = 0
    shared: int = 0  # have the numbers of an identical run
    diverged: int = 0  # of `trained` and `shared`
    unkept: set[str] = field(default_factory=set)  # keys of those whose checkpoint could not be written
    restarts: int = 0  # of jobs whose process or node was lost
    failures: list[tuple[Job, Failure, int]] = field(default_factory=list)  # with how many runs were not made for it
    parted: list[tuple[CellGroup, Failure]] = field(default_factory=list)  # those that were made in parts then

    @property
    def not_made(self) -> int:
        """How many runs were not made."""
        return sum(runs for _, _, runs in self.failures)


class Runner:
    """Makes the runs that were asked for and are not in the results; a search for learning rates comes first."""

    def __init__(
        self,
        request: RunRequest,
        store: RecordStore,
        pool: "JobPool",
        reporter: "GridProgress",
        elsewhere: Callable[[], Mapping[str, RunRecord]] = dict,
        grouping: GroupPlanner | None = None,
    ) -> None:
        self.request = request
        self.store = store
        self.pool = pool
        self.reporter = reporter
        self._elsewhere = elsewhere  # reads what other parts of the grid have recorded by now
        self.summary = Tally()
        self._grouping = grouping  # None makes every run by itself
        self._groups_folder = store.folder / GROUPS_FOLDER
        self._queue: list[Cell | CellGroup] = []
        self._identical: dict[str, tuple[Cell, ...]] = {}  # from the key of a run to be made to all that are identical
        self._lost_once: set[str] = set()  # keys of groups whose process died
        self._prepared: dict[str, bool] = {}  # from the name of data to whether their preparation is over
        self._unprepared: dict[str, tuple[Preparation, Failure]] = {}  # from the name of data that are missing

    def run(self) -> Tally:
        """Make the runs."""
        experiments = self.request.experiments()
        later = [experiment for experiment in experiments if experiment.learning_rate_from is not None]
        self._stage(self.request.first_cells(), sum(len(self.request.later_cells(experiment)) for experiment in later))
        for experiment in later:
            self._stage(self._after_search(experiment, experiments), 0)
        return self.summary

    def _after_search(self, experiment: Experiment, experiments: Sequence[Experiment]) -> list[Cell]:
        """Return the cells of an experiment with searched learning rates; arms whose search failed have none."""
        search = next(other for other in experiments if other.name == experiment.learning_rate_from)
        searching, records = self.request.cells(search), self._records()
        for cell in searching:
            if cell.key in records:
                check_same_configuration(cell, records[cell.key])
        rates = searched_learning_rates(search, searching, records)
        for arm in experiment.arms:
            waiting = [] if arm in rates else self.request.later_cells(experiment, {arm: 0.0})
            if waiting:
                is_over = all(cell.key in records for cell in searching if cell.arm == arm)
                reason = f"Arm {arm}: {self._why_no_rate(search, is_over)}."
                self._fail(waiting[0], Failure("no rate", reason), len(waiting), ())
        return self.request.later_cells(experiment, rates)

    def _why_no_rate(self, search: Experiment, is_over: bool) -> str:
        """Return why an arm has no learning rate."""
        if is_over:
            return f"its runs of {search.name} diverged at every learning rate"
        reason = f"the search for its learning rate, {search.name}, is not complete"
        if self.request.shard is not None:
            reason += ". Other shards take part in it: when they have ended, give the same command again"
        return reason

    def _records(self) -> dict[str, RunRecord]:
        return {**self._elsewhere(), **self.store.records}

    def _stage(self, cells: Sequence[Cell], later: int) -> None:
        """Make the runs of some cells."""
        planned = plan(cells, self._records())
        self._identical = {identical[0].key: identical for identical in planned.identical}
        self._queue = self._jobs(cells, [identical[0] for identical in planned.identical])
        self.reporter.planned(planned, later, sum(isinstance(job, CellGroup) for job in self._queue))
        self.pool.expect(len(self._queue))
        self.summary.finished += len(planned.finished)
        for record in planned.shared:
            self._record(record)
        wanted = {job.data_name for job in self._queue}
        for preparation, failure in [self._unprepared[name] for name in self._unprepared if name in wanted]:
            self._lose(preparation, failure)
        while self._queue or self.pool.running:
            while self.pool.has_room and (job := self._next_job()) is not None:
                self.pool.start(job)
                self.reporter.started(job)
            for job, message in self.pool.wait(_SECONDS_BETWEEN_UPDATES):
                self._hear(job, message)
            self.reporter.tick()
        self._forget_groups(identical[0] for identical in self._identical.values())

    def _jobs(self, cells: Sequence[Cell], wanted: Sequence[Cell]) -> list[Cell | CellGroup]:
        """Return what is to be done for the runs that are wanted, those first that a kill has left unfinished."""
        self._forget_groups(wanted)
        if self._grouping is None:
            return list(wanted)
        by_fingerprint = {cell.fingerprint: cell for cell in [*cells, *wanted]}
        begun = [
            group
            for group in unfinished_groups(self._groups_folder, by_fingerprint, {cell.fingerprint for cell in wanted})
            if len(group.cells) <= self._grouping.limit(group.cells[0])
        ]
        keys = {cell.key for group in begun for cell in group.cells}
        return [*begun, *self._grouping.jobs([cell for cell in wanted if cell.key not in keys])]

    def _forget_groups(self, wanted: Iterable[Cell]) -> None:
        """Remove what is kept of groups all of whose runs are recorded, and none of which is to be made."""
        # A run that is wanted may be recorded for another experiment, which does not measure all that this one does.
        recorded = {fingerprint(record.config, record.seed) for record in self._records().values()}
        forget_groups(self._groups_folder, recorded - {cell.fingerprint for cell in wanted})

    def _next_job(self) -> Job | None:
        """Return the next job whose data are prepared, or the preparation of the first that are not."""
        for number, job in enumerate(self._queue):
            cell = cells_of(job)[0]
            is_over = self._prepared.get(job.data_name)
            if is_over is None:
                self._prepared[job.data_name] = False
                requires = self.request.all_experiments()[cell.experiment].data_requires
                return Preparation(f"data of {cell.experiment}", cell.config["data"], requires)
            if is_over:
                return self._queue.pop(number)
        return None

    def _hear(self, job: Job, message: Message) -> None:
        """Record a run and the runs that are identical to it, or note how far a job is, or what went wrong."""
        if isinstance(message, Progress):
            self.reporter.progressed(job, message)
        elif isinstance(message, Restart):
            self.summary.restarts += 1
            self.reporter.restarted(job, message)
        elif isinstance(message, Failure):
            self._lose(job, message)
        elif isinstance(job, Preparation):
            self._prepared[job.data_name] = True
            self.reporter.prepared(job)
        else:
            self.summary.unkept |= message.unkept.keys()
            self.reporter.unkept(message.unkept)
            for made in message.records:
                for cell in self._identical.pop(made.key, ()):  # none of a run that was recorded before a kill
                    self._record(share(made, cell))
            if isinstance(job, CellGroup):
                self.reporter.ended(job)
                forget_group(self._groups_folder, job)

    def _record(self, record: RunRecord) -> None:
        check_same_data(record, self.store.records.values())
        self.store.append(record)
        self.summary.diverged += record.status == "diverged"
        if record.shared_from is None:
            self.summary.trained += 1
        else:
            self.summary.shared += 1
        self.reporter.recorded(record)

    def _lose(self, job: Job, failure: Failure) -> None:
        """Give up a run, or all runs with data that are missing; make the runs of a group in another way."""
        if isinstance(job, CellGroup) and failure.kind != "missing":
            self._retry(job, failure)
            return
        lost = [job] if not isinstance(job, Preparation) else []
        if isinstance(job, Preparation):
            self._unprepared[job.data_name] = job, failure
        if isinstance(job, Preparation) or failure.kind == "missing":
            lost += [other for other in self._queue if other.data_name == job.data_name]
            self._queue = [other for other in self._queue if other.data_name != job.data_name]
        cells = [cell for other in lost for cell in cells_of(other)]
        runs = [self._identical.pop(cell.key, ()) for cell in cells]
        self._fail(job, failure, sum(map(len, runs)), cells)

    def _retry(self, group: CellGroup, failure: Failure) -> None:
        """Go on with a group whose process died; at the second time, or after an error, make two of it."""
        # So the runs that can be made together are, beside the one that cannot, or that memory has no room for.
        goes_on = failure.kind == "lost" and failure.begun == 1 and group.key not in self._lost_once
        self.reporter.retried(group, failure, goes_on=goes_on)
        if goes_on:
            self._lost_once.add(group.key)
            self._queue.insert(0, group)
        else:
            self.summary.parted.append((group, failure))
            forget_group(self._groups_folder, group)
            left = CellGroup(tuple(cell for cell in group.cells if cell.key in self._identical))
            self._queue[:0] = left.halves() if len(left.cells) > 1 else left.cells

    def _fail(self, job: Job, failure: Failure, runs: int, cells: Sequence[Cell]) -> None:
        self.summary.failures.append((job, failure, runs))
        self.reporter.failed(job, failure, runs, cells)
