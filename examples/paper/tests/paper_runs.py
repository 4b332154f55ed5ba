"""A small table of experiments on the bundled digits, and what runs them without other processes."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from lightning.fabric.utilities.warnings import PossibleUserWarning

from gelu_paper.grid_runner import Runner, Tally
from gelu_paper.group_planning import GroupPlanner
from gelu_paper.jobs import CellGroup, Done, Failure, Job, Message, Restart, RunOptions
from gelu_paper.planning import RunRequest
from gelu_paper.pools.job_answer import answer
from gelu_paper.protocol.cells import Cell
from gelu_paper.protocol.experiments import Arm, Experiment
from gelu_paper.records.run_record import RunRecord
from gelu_paper.records.run_store import RecordStore
from gelu_paper.training.cell_training import DataCache

DIGITS = Experiment(
    name="digits",
    title="digits",
    place="nowhere",
    task="lit_gelu.tasks.MNISTClassifier",
    data="lit_gelu.data.DigitsData",
    arms={"gelu": Arm("gelu_tanh"), "relu": Arm("relu")},
    settings={"keep": (1.0, 0.5)},
    learning_rates=(1e-2,),
    seeds=2,
    epochs=2,
    evaluations=3,
    selection="best_validation",
    tuned=("learning_rate",),
    task_args={"hidden_layers": 1},
    data_args={"batch_size": 128},
    robustness_levels=(0.0, 1.0),
    robust_settings={"keep": 1.0},
)
SHARING = replace(
    DIGITS,
    name="sharing",
    arms={"relu": Arm("relu", settings={"keep": (1.0, 0.75)})},
    robustness_levels=(),
    tuned=("learning_rate", "keep"),
)
SEARCH = replace(
    DIGITS, name="search", settings={}, robustness_levels=(), learning_rates=(1e-2, 1e-8), seeds=1, epochs=1
)
FINAL = replace(
    SEARCH, name="final", learning_rates=(), learning_rate_from="search", seeds=2, selection="last", tuned=()
)
MISSING = replace(DIGITS, name="missing", data="lit_gelu.data.MNISTData", seeds=1)


def request(*experiments: Experiment, **filters: tuple[str, ...]) -> RunRequest:
    """Return a request for experiments of a table of one's own."""
    return RunRequest("quick", table={experiment.name: experiment for experiment in experiments}, **filters)


class InlinePool:
    """Does jobs in this process, one when asked for messages; stops as if killed after some runs."""

    running = 0

    def __init__(self, root: str | None = None, stop_after: int | None = None, groups: str | None = None) -> None:
        self.options = RunOptions(root=root, groups=groups)
        self.data = DataCache(root)
        self.trained: list[str] = []
        self._stop_after = stop_after
        self._jobs: list[Job] = []

    @property
    def has_room(self) -> bool:
        return not self._jobs

    def expect(self, jobs: int) -> None: ...

    def start(self, job: Job) -> None:
        self._jobs.append(job)
        self.running = 1

    def wait(self, seconds: float) -> Iterator[tuple[Job, Message]]:
        job = self._jobs.pop()
        if self._stop_after is not None and len(self.trained) >= self._stop_after:
            raise KeyboardInterrupt
        message = self.answer(job)
        self.running = 0
        if isinstance(message, Done):
            self.trained += [record.key for record in message.records]
        yield job, message

    def answer(self, job: Job) -> Message:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PossibleUserWarning)
            return answer(job, self.data, self.options, lambda epoch: None)


class Log:
    """A reporter that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def planned(self, plan: object, later: int, groups: int = 0) -> None:
        self.heard.append(("planned", later))

    def started(self, job: Job) -> None: ...

    def progressed(self, job: Job, epoch: float) -> None: ...

    def prepared(self, job: Job) -> None:
        self.heard.append(("prepared",))

    def unkept(self, warnings: Mapping[str, str]) -> None:
        self.heard.extend(("unkept", key) for key in warnings)

    def recorded(self, record: RunRecord) -> None:
        self.heard.append(("recorded", record.key))

    def restarted(self, job: Job, restart: Restart) -> None:
        self.heard.append(("restarted", restart.attempt))

    def failed(self, job: Job, failure: Failure, runs: int, given_up: Sequence[Cell] = ()) -> None:
        self.heard.append(("failed", failure.kind, runs))

    def retried(self, group: CellGroup, failure: Failure, *, goes_on: bool) -> None:
        self.heard.append(("retried", failure.kind, goes_on))

    def ended(self, group: CellGroup) -> None:
        self.heard.append(("ended", len(group.cells)))

    def tick(self) -> None: ...


def run(
    folder: object, wanted: RunRequest, pool: InlinePool | None = None, grouping: GroupPlanner | None = None
) -> tuple[Tally, dict[str, RunRecord]]:
    """Make the runs, and return what became of them and what is in the results."""
    with RecordStore(folder) as store:  # type: ignore[arg-type]
        summary = Runner(wanted, store, pool or InlinePool(), Log(), grouping=grouping).run()  # type: ignore[arg-type]
        return summary, dict(store.records)


def without_times(records: dict[str, RunRecord]) -> dict[str, dict[str, object]]:
    """Return the records without what differs between two runs of the same."""
    return {key: asdict(_without_times(record)) for key, record in records.items()}


def _without_times(record: RunRecord) -> RunRecord:
    group = None if record.group is None else {**record.group, "seconds": 0.0}
    return replace(record, started="", seconds=0.0, group=group)
