"""How ``lit-gelu paper run`` shows its progress: bars in a terminal, a line for each finished run everywhere."""

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from gelu_paper import jobs
from gelu_paper.estimate import Estimate
from gelu_paper.jobs import CellGroup, Failure, Job, Restart, cells_of
from gelu_paper.planning import Plan
from gelu_paper.protocol.cells import Cell
from gelu_paper.protocol.experiments import Experiment
from gelu_paper.records.run_record import RunRecord


class GridProgress:
    """Shows how far the whole grid is, which runs are being made and about how long the rest will take."""

    def __init__(self, console: Console, experiments: Mapping[str, Experiment], workers: int) -> None:
        self._console = console
        self._workers = workers
        self._estimate = Estimate(experiments)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._all = self._bars.add_task("all runs", total=None, note="")
        self._tasks: dict[str, TaskID] = {}
        self._first: dict[str, tuple[float, float]] = {}  # of a job: when it was first heard of, and at which epoch
        self._left: dict[str, tuple[str, float]] = {}  # of runs to be made: experiment and share that is left
        self._warned: set[tuple[str, str]] = set()
        self._began = time.monotonic()
        self._known = self._later = self._recorded = 0

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take the bars away."""
        self._bars.stop()

    def planned(self, plan: Plan, later: int, groups: int = 0) -> None:
        """Show how many runs there are."""
        cells = sum(len(same) for same in plan.identical)
        self._known += len(plan.finished) + len(plan.shared) + cells
        self._later = later
        self._recorded += len(plan.finished)
        self._left |= {same[0].key: (same[0].experiment, 1.0) for same in plan.identical}
        self._print(
            f"{len(plan.finished) + len(plan.shared) + cells} runs: {len(plan.finished)} finished before, "
            f"{len(plan.identical)} to be made, {cells - len(plan.identical) + len(plan.shared)} identical to others"
            + (f"; {groups} groups of them are made together" if groups else "")
            + (f"; {later} more when their learning rates are chosen" if later else "")
        )
        self.tick()

    def started(self, job: Job) -> None:
        """Show that a job was begun."""
        cells = cells_of(job)
        total = cells[0].config["trainer"]["max_epochs"] if cells else None
        self._tasks[job.key] = self._bars.add_task(job.key, total=total, note="epochs" if total else "")

    def progressed(self, job: Job, how_far: jobs.Progress) -> None:
        """Show how many epochs of a run, or of each of a group, have passed, and how fast all of its steps are."""
        self._warn(how_far.unkept or job.key, how_far.warning)
        epoch, now = how_far.epoch, time.monotonic()
        began, first = self._first.setdefault(job.key, (now, epoch))
        speed = len(cells_of(job)) * how_far.epoch_steps * (epoch - first) / max(now - began, 1e-9)
        for cell in cells_of(job):
            if cell.key in self._left:
                self._left[cell.key] = (cell.experiment, max(0.0, 1 - epoch / cell.config["trainer"]["max_epochs"]))
        note = f"epochs, {speed:,.0f} steps/s" if speed > 0 else "epochs"
        self._bars.update(self._tasks[job.key], completed=int(epoch), note=note)

    def unkept(self, warnings: Mapping[str, str]) -> None:
        """Show of runs, by their keys, why they have no checkpoint, unless it was shown while they were made."""
        for key, warning in warnings.items():
            self._warn(key, warning)

    def recorded(self, record: RunRecord) -> None:
        """Show that a run is in the results."""
        self._recorded += 1
        self._forget(record.key)
        if record.shared_from is None:
            self._estimate.add(record.experiment, record.seconds)
        took = f"{record.seconds:.1f} s" if record.shared_from is None else f"as {record.shared_from}"
        status = "DIVERGED, " if record.status == "diverged" else ""
        self._print(
            f"[{self._recorded}/{self._total}] {record.key}: {status}{_figure(record)}, {took}; {self._times()}"
        )
        self.tick()

    def restarted(self, job: Job, restart: Restart) -> None:
        """Show that a job was lost, and is being done again."""
        where = ", from its checkpoint if there is one" if isinstance(job, CellGroup) else ""
        self._print(f"{job.key}: LOST, begun again ({restart.attempt} of {restart.attempts}){where}: {restart.reason}")
        self._first.pop(job.key, None)
        self.progressed(job, jobs.Progress(0.0))
        self._first.pop(job.key, None)

    def failed(self, job: Job, failure: Failure, runs: int, given_up: Sequence[Cell] = ()) -> None:
        """Show that a job failed, and how many runs are left out for that; what was planned of them takes no time."""
        self._forget(job.key)
        for cell in (*cells_of(job), *given_up):
            self._forget(cell.key)
        if failure.kind == "missing":
            self._print(f"{job.key}: missing, {runs} runs left out; what is missing is said at the end")
        else:
            self._print(f"{job.key}: FAILED: {failure.message}")

    def retried(self, group: CellGroup, failure: Failure, *, goes_on: bool) -> None:
        """Show that a group failed, and how its runs are made then."""
        self._forget(group.key)
        then = "it goes on in another process" if goes_on else "it is made in two parts"
        self._print(f"{group.key}: FAILED: {failure.message} {then}.")

    def prepared(self, job: Job) -> None:
        """Take a preparation's bar away."""
        self._forget(job.key)

    def ended(self, group: CellGroup) -> None:
        """Take the bar away of a group whose runs are recorded."""
        self._forget(group.key)

    def tick(self) -> None:
        """Bring the bar of all runs up to date."""
        self._bars.update(self._all, total=self._total, completed=self._recorded, note=self._rest())

    @property
    def _total(self) -> int:
        return self._known + self._later

    def _warn(self, name: str, warning: str) -> None:
        """Show a warning, once."""
        if warning and (name, warning) not in self._warned:
            self._warned.add((name, warning))
            self._print(f"{name}: WARNING: {warning}")

    def _forget(self, name: str) -> None:
        self._left.pop(name, None)
        self._first.pop(name, None)
        if (task := self._tasks.pop(name, None)) is not None:
            self._bars.remove_task(task)

    def _times(self) -> str:
        elapsed = f"{duration(time.monotonic() - self._began)} so far"
        return f"{elapsed}, {rest}" if (rest := self._rest()) else elapsed

    def _rest(self) -> str:
        seconds = self._estimate.rest(self._left.values(), self._workers) if self._left else None
        return "" if seconds is None else f"about {duration(seconds)} left"

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """Return a time as people say it."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _figure(record: RunRecord) -> str:
    """Return the result that says most of a run in one line."""
    result = record.result
    if result.last_test_error is not None:
        return f"test error {result.last_test_error:.2%}"
    return "no test loss" if result.last_test_loss is None else f"test loss {result.last_test_loss:.4g}"
