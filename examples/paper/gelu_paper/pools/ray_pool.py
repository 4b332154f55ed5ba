"""`RayPool`: Ray's tasks make the runs, on one machine or on a cluster; results come back to this process alone."""

import contextlib
import itertools
import math
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gelu_paper.errors import ClusterError, PaperArgumentError
from gelu_paper.jobs import Failure, Job, Message, Preparation, Progress, Restart, RunOptions
from gelu_paper.pools.ray_board import PLACE, Board
from gelu_paper.pools.ray_session import Node, RaySession
from gelu_paper.pools.ray_work import DATA_VARIABLE, Order, OtherVersions, work
from gelu_paper.training.cell_training import versions

_SECONDS_FOR_NOTES = 0.1
_BOARDS, _SECONDS_FOR_BOARD = 3, 120.0
_SECONDS_WITHOUT_NODES = 60.0


@dataclass
class _Task:
    """A job on its way, or the part of a preparation that is made on one node."""

    job: Job
    node: str | None  # where it should be done; None wherever Ray wants
    number: int = 0
    losses: int = 0
    place: tuple[str, int] | None = None  # Ray's name of the node, and the process there


class RayPool:
    """Jobs as tasks of Ray, which may be lost with their process or node and are begun again, so often and no more.

    Args:
        options: Where the data are, and so on; the folders must be the same ones on every node.
        address: A cluster's, or ``auto`` for the one on this machine; ``None`` starts Ray here.
        jobs: How many at a time; ``None`` for as many as the nodes have room for.
        cpus: That a job takes; ``None`` for as many as it has threads.
        gpus: That a job takes; .25 is a quarter of one.
        retries: How often a job that was lost is begun again.
        logs: Folder for what Ray writes if it is started here; ``None`` leaves it to Ray.
        allow_other_versions: Whether nodes may have other versions of Python, torch and so on than this process.

    Raises:
        PaperArgumentError: If numbers are out of range, Ray is missing, or a GPU is needed and not asked for.
    """

    # Ray's own retries are off: they are silent. Ray's storage is not used: what a task returns is a job's end.
    # Progress goes by an actor on this node: on another one it would be lost with that.

    def __init__(
        self,
        options: RunOptions,
        *,
        address: str | None = None,
        jobs: int | None = None,
        cpus: float | None = None,
        gpus: float = 0.0,
        retries: int = 2,
        logs: Path | None = None,
        allow_other_versions: bool = False,
    ) -> None:
        self._cpus = options.threads if cpus is None else cpus
        if (jobs is not None and jobs < 1) or self._cpus <= 0 or gpus < 0 or retries < 0:
            raise PaperArgumentError(
                f"jobs={jobs}, cpus={cpus}, gpus={gpus}, retries={retries} given; accepted: one job or more, "
                "CPUs above 0, GPUs and retries of 0 or above."
            )
        if gpus == 0 and options.accelerator in {"cuda", "gpu"}:
            raise PaperArgumentError(
                f"gpus=0 given with accelerator={options.accelerator!r}: all runs would be on the first GPU of a node. "
                "Give gpus=1, or a share such as .25."
            )
        local_cpus = None if jobs is None else math.ceil(jobs * self._cpus)
        self._session = RaySession(address, cpus=local_cpus, threads=options.threads, logs=logs)
        self._options = options
        self._data = str(Path(os.environ.get(DATA_VARIABLE, "data")).absolute())  # nodes have other current folders
        self._jobs = jobs
        self._gpus = gpus
        self._retries = retries
        self._versions = None if allow_other_versions else versions()
        self._tasks: dict[Any, _Task] = {}  # by what Ray calls a task's result
        self._numbers = itertools.count()
        self._preparations: list[Preparation] = []
        self._unordered: list[Preparation] = []  # those for which no node had room
        self._seen: tuple[float, list[Node]] = (-1.0, [])
        self._without_nodes: float | None = None  # since when
        self._board: Any = None
        self._run: Any = None
        self._prepare: Any = None
        self._drain: Any = None  # what was asked of it, and has not come yet

    def __enter__(self) -> Self:
        """Start Ray, or join the cluster."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._session)
            self._begin()
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the tasks, whatever they are doing, and Ray if it was started here."""
        try:
            for reference in self._tasks:
                self._session.ray.cancel(reference, force=True)
        finally:
            self._tasks.clear()
            self._session.__exit__(kind, error, traceback)

    @property
    def workers(self) -> int:
        """How many jobs are done at a time, on the nodes that are alive."""
        room = sum(map(self._slots, self._nodes()))
        return max(1, room if self._jobs is None else min(room, self._jobs))

    @property
    def has_room(self) -> bool:
        """Whether there are resources for another job."""
        return self.running < self.workers

    @property
    def running(self) -> int:
        """How many jobs have neither ended nor failed."""
        return len({id(task.job) for task in self._tasks.values()}) + len(self._unordered)

    def expect(self, jobs: int) -> None:
        """Do nothing: Ray starts its processes itself, when they have something to do."""

    def start(self, job: Job) -> None:
        """Give a job to Ray; a preparation to each node."""
        if isinstance(job, Preparation):
            self._spread(job)
            self._preparations.append(job)
        else:
            self._order(_Task(job, None))

    def wait(self, seconds: float) -> Iterator[tuple[Job, Message]]:
        """Yield jobs with what is said of them: `Progress` and `Restart`, then one `Done` or `Failure`."""
        waiting, self._unordered = self._unordered, []
        for preparation in waiting:
            self._spread(preparation)
        if not self._tasks:
            time.sleep(seconds)
            self._check_nodes()
            return
        done, _ = self._session.ray.wait(list(self._tasks), timeout=seconds)
        yield from self._notes()
        for reference in done:
            if reference in self._tasks:
                yield from self._end(reference)
        self._check_nodes()

    def _begin(self) -> None:
        """Put the board on this node, and make tasks of what processes do."""
        if not any(map(self._slots, self._nodes())):
            raise ClusterError(self._no_room())
        self._board = self._new_board()
        ray = self._session.ray
        self._run = ray.remote(num_cpus=self._cpus, num_gpus=self._gpus, max_retries=0)(work)
        self._prepare = ray.remote(num_cpus=0, max_retries=0)(work)  # it waits for no one's jobs

    def _new_board(self) -> Any:
        """Return a board on this node that answers."""
        # Ray may take a process for gone at the moment at which it has joined, and its actors with it. The actor has no
        # restarts: where memory is short Ray first ends what it may restart.
        ray, here = self._session.ray, self._session.on(self._session.here, soft=False)
        for attempt in range(_BOARDS):
            board = ray.remote(num_cpus=0)(Board).options(scheduling_strategy=here).remote()
            try:
                ray.get(board.drain.remote(), timeout=_SECONDS_FOR_BOARD)
            except ray.exceptions.RayError as error:
                if attempt == _BOARDS - 1:
                    raise ClusterError(f"Ray starts no process on this machine: {error}\nSee its logs.") from error
            else:
                break
        return board

    def _spread(self, job: Preparation) -> None:
        """Order a preparation on each node that has room, or keep it until one has."""
        nodes = [node for node in self._nodes() if self._slots(node)]
        for node in nodes:
            self._order(_Task(job, node.id))
        if not nodes:
            self._unordered.append(job)

    def _order(self, task: _Task) -> None:
        task.number, task.place = next(self._numbers), None
        known = tuple(one for one in self._preparations if one.data_name == task.job.data_name)
        order = Order(task.number, task.job, self._options, known, self._versions, self._data)
        run = self._prepare if isinstance(task.job, Preparation) else self._run
        strategy = "SPREAD" if task.node is None else self._session.on(task.node, soft=True)
        reference = run.options(name=task.job.key, scheduling_strategy=strategy).remote(order, self._board)
        self._tasks[reference] = task

    def _notes(self) -> Iterator[tuple[Job, Message]]:
        """Yield what jobs have put on the board; without a board nothing but progress is lost."""
        ray = self._session.ray
        if self._drain is None:
            self._drain = self._board.drain.remote()
        try:
            if not ray.wait([self._drain], timeout=_SECONDS_FOR_NOTES)[0]:
                return  # what is asked for is taken from the board: it must not be asked for twice
            notes = ray.get(self._drain)
        except ray.exceptions.RayActorError:
            notes = []
            with contextlib.suppress(ClusterError):
                self._board = self._new_board()
        except ray.exceptions.RayError:
            notes = []
        self._drain = None
        tasks = {task.number: task for task in self._tasks.values()}
        for number, kind, value in notes:
            if (task := tasks.get(number)) is None:
                continue  # it was lost, and this came late
            if kind == PLACE:
                task.place = value
            else:
                yield task.job, Progress(*value)

    def _end(self, reference: Any) -> Iterator[tuple[Job, Message]]:
        """Yield what became of a task that Ray has done with."""
        task, errors = self._tasks.pop(reference), self._session.ray.exceptions
        try:
            message = self._session.ray.get(reference)
        except errors.RayTaskError as error:
            raise ClusterError(f"A node cannot do any job: {error}\nInstall lit-gelu there as it is here.") from error
        except errors.LocalRayletDiedError as error:
            raise ClusterError(f"Ray has ended on this machine: {error}\nThe same command goes on.") from error
        except errors.RayError as error:
            yield task.job, self._lost(task, error)
            return
        if isinstance(message, OtherVersions):
            raise ClusterError(self._other_versions(message))
        if isinstance(message, Failure):
            self._forget(task.job)
            yield task.job, Failure(message.kind, self._where(task, message.message), message.trace)
        elif not any(other.job is task.job for other in self._tasks.values()):  # a preparation's last node
            yield task.job, message

    def _lost(self, task: _Task, error: Exception) -> Message:
        """Begin a job again, on another node if there is one, or give it up."""
        reason = self._reason(task, error)
        task.losses += 1
        if task.losses > self._retries:
            self._forget(task.job)
            times = "" if task.losses == 1 else f" It was begun {task.losses} times."
            return Failure("lost", f"{reason}{times}", begun=task.losses)
        at = task.place[0] if task.place is not None else task.node
        self._seen = (-1.0, [])
        others = [node for node in self._nodes() if node.id != at and self._slots(node)]
        used = Counter(other.place[0] for other in self._tasks.values() if other.place is not None)
        task.node = min((node.id for node in others), key=lambda node: used[node], default=None)
        self._order(task)
        return Restart(reason, task.losses, self._retries)

    def _forget(self, job: Job) -> None:
        """Give up what is left of a job on other nodes."""
        for reference in [reference for reference, task in self._tasks.items() if task.job is job]:
            del self._tasks[reference]

    def _reason(self, task: _Task, error: Exception) -> str:
        errors = self._session.ray.exceptions
        where = "" if task.place is None else f" {task.place[1]} on {self._address(task.place[0])}"
        if isinstance(error, errors.OutOfMemoryError):
            return f"Ray ended the process{where} because memory was short there: give fewer --workers."
        if isinstance(error, errors.NodeDiedError):
            return f"The node of process{where} died, or was cut off."
        if isinstance(error, errors.WorkerCrashedError):
            return f"The process{where} died, often for want of memory: give fewer --workers."
        return f"The process{where} or its result was lost ({type(error).__name__})."

    def _where(self, task: _Task, message: str) -> str:
        """Name the node in what its user can mend, if there are several."""
        several = task.place is not None and len(self._nodes()) > 1
        return f"{message} (on {self._address(task.place[0])})" if several and task.place is not None else message

    def _address(self, node: str) -> str:
        return next((other.address for other in self._nodes() if other.id == node), f"node {node[:8]}")

    def _nodes(self) -> list[Node]:
        """Return the nodes that are alive, as they were a second ago at most."""
        if time.monotonic() - self._seen[0] > 1.0 or not self._seen[1]:
            self._seen = (time.monotonic(), self._session.nodes())
        return self._seen[1]

    def _slots(self, node: Node) -> int:
        return node.slots(self._cpus, self._gpus)

    def _check_nodes(self) -> None:
        """Refuse to wait for ever when all nodes that could do a job are gone."""
        if any(map(self._slots, self._nodes())):
            self._without_nodes = None
        elif self._without_nodes is None:
            self._without_nodes = time.monotonic()
        elif time.monotonic() - self._without_nodes > _SECONDS_WITHOUT_NODES:
            raise ClusterError(self._no_room())

    def _no_room(self) -> str:
        found = ", ".join(f"{node.address}: {node.cpus:g} and {node.gpus:g}" for node in self._nodes()) or "none"
        return (
            f"No node of the cluster has the {self._cpus:g} CPUs and {self._gpus:g} GPUs that a run takes (nodes with "
            f"their CPUs and GPUs: {found}). Add one, or change --threads, --gpu-share or --accelerator."
        )

    def _other_versions(self, found: OtherVersions) -> str:
        wanted = self._versions or {}
        differing = [
            f"{name} {found.found.get(name)} instead of {version}"
            for name, version in wanted.items()
            if found.found.get(name) != version
        ]
        return (
            f"{self._address(found.node)} has {', '.join(differing)}. Install there what is here, or give "
            "--allow-other-versions: the records say which they were made with."
        )
