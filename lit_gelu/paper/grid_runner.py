"""Making the runs of a plan: several at a time, the finished ones recorded at once, a failed one no reason to stop."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lit_gelu.paper.cells import Cell, check_same_configuration
from lit_gelu.paper.experiments import Experiment
from lit_gelu.paper.jobs import Failure, Job, Message, Preparation, Progress, Restart
from lit_gelu.paper.planning import RunRequest, plan, searched_learning_rates, share
from lit_gelu.paper.run_record import RunRecord
from lit_gelu.paper.run_store import RecordStore

if TYPE_CHECKING:
    from lit_gelu.paper.job_pool import JobPool
    from lit_gelu.paper.progress import GridProgress

_SECONDS_BETWEEN_UPDATES = 0.5


@dataclass
class Tally:
    """What became of a request: how many runs, and the jobs that failed."""

    finished: int = 0  # were in the results already
    trained: int = 0
    shared: int = 0  # have the numbers of an identical run
    diverged: int = 0  # of `trained` and `shared`
    restarts: int = 0  # of jobs whose process or node was lost
    failures: list[tuple[Job, Failure, int]] = field(default_factory=list)  # with how many runs were not made for it

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
    ) -> None:
        self.request = request
        self.store = store
        self.pool = pool
        self.reporter = reporter
        self._elsewhere = elsewhere  # reads what other parts of the grid have recorded by now
        self.summary = Tally()
        self._queue: list[tuple[Cell, ...]] = []
        self._groups: dict[str, tuple[Cell, ...]] = {}
        self._prepared: dict[str, bool] = {}  # from the name of data to whether their preparation is over

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
        reason = f"the search for its learning rate, {search.name}, is not complete"
        if self.request.shard is not None:
            reason += ". Other shards take part in it: when they have ended, give the same command again"
        for arm in experiment.arms:
            waiting = [] if arm in rates else self.request.later_cells(experiment, {arm: 0.0})
            if waiting:
                self._fail(waiting[0], Failure("missing", f"Arm {arm}: {reason}."), len(waiting))
        return self.request.later_cells(experiment, rates)

    def _records(self) -> dict[str, RunRecord]:
        return {**self._elsewhere(), **self.store.records}

    def _stage(self, cells: Sequence[Cell], later: int) -> None:
        """Make the runs of some cells."""
        planned = plan(cells, self._records())
        self.reporter.planned(planned, later)
        self.summary.finished += len(planned.finished)
        for record in planned.shared:
            self._record(record)
        self._queue = list(planned.groups)
        while self._queue or self.pool.running:
            while self.pool.has_room and (job := self._next_job()) is not None:
                self.pool.start(job)
                self.reporter.started(job)
            for job, message in self.pool.wait(_SECONDS_BETWEEN_UPDATES):
                self._hear(job, message)
            self.reporter.tick()

    def _next_job(self) -> Job | None:
        """Return the next run whose data are prepared, or the preparation of the first that are not."""
        for number, group in enumerate(self._queue):
            cell = group[0]
            is_over = self._prepared.get(cell.data_name)
            if is_over is None:
                self._prepared[cell.data_name] = False
                requires = self.request.all_experiments()[cell.experiment].data_requires
                return Preparation(f"data of {cell.experiment}", cell.config["data"], requires)
            if is_over:
                self._groups[cell.key] = self._queue.pop(number)
                return cell
        return None

    def _hear(self, job: Job, message: Message) -> None:
        """Record a run and the runs that are identical to it, or note how far a job is, or what went wrong."""
        if isinstance(message, Progress):
            self.reporter.progressed(job, message.epoch)
        elif isinstance(message, Restart):
            self.summary.restarts += 1
            self.reporter.restarted(job, message)
        elif isinstance(message, Failure):
            self._lose(job, message)
        elif message.record is None:
            self._prepared[job.data_name] = True
            self.reporter.prepared(job)
        else:
            for cell in self._groups.pop(job.key):
                self._record(share(message.record, cell))

    def _record(self, record: RunRecord) -> None:
        self.store.append(record)
        self.summary.diverged += record.status == "diverged"
        if record.shared_from is None:
            self.summary.trained += 1
        else:
            self.summary.shared += 1
        self.reporter.recorded(record)

    def _lose(self, job: Job, failure: Failure) -> None:
        """Give up a run, or all runs with data that are missing."""
        lost = [] if isinstance(job, Preparation) else [self._groups.pop(job.key)]
        if isinstance(job, Preparation) or failure.kind == "missing":
            lost += [group for group in self._queue if group[0].data_name == job.data_name]
            self._queue = [group for group in self._queue if group[0].data_name != job.data_name]
        self._fail(job, failure, sum(len(group) for group in lost))

    def _fail(self, job: Job, failure: Failure, runs: int) -> None:
        self.summary.failures.append((job, failure, runs))
        self.reporter.failed(job, failure, runs)
