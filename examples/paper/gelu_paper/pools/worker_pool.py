"""`WorkerPool`: processes that make runs side by side, each one run at a time."""

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Self

from lit_gelu.garbage import collection_paused
from gelu_paper.errors import PaperArgumentError
from gelu_paper.jobs import Failure, Job, Message, Progress, RunOptions
from gelu_paper.pools.child_variables import threads_limited, variables_set
from gelu_paper.pools.visible_gpus import VARIABLE as VISIBLE_GPUS


def work(connection: Connection, options: RunOptions) -> None:
    """Make the runs that come in, one after the other, and send messages; ``None`` ends the process."""
    # Ends when the other side closes the connection, also if that process was killed: between runs at once, within a
    # run at its next report, a second later.
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the planning one ends the others
    # These take seconds to import: the process that plans, which imports this file, does without Lightning.
    with collection_paused():
        import torch

        from gelu_paper.pools.job_answer import answer, quieten
        from gelu_paper.training.cell_training import DataCache

    torch.set_num_threads(options.threads)
    quieten()
    data = DataCache(options.root)
    try:
        while (job := connection.recv()) is not None:
            connection.send(answer(job, data, options, connection.send))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # nobody is there to take the result


_SECONDS_TO_END = 5.0


@dataclass
class _Worker:
    """A process, our end of its connection, and what it is doing."""

    process: SpawnProcess
    connection: Connection
    gpu: str | None = None  # the one that it sees; None for what this process sees
    job: Job | None = None


class WorkerPool:
    """Processes that take jobs; a process that dies takes its job with it and is replaced."""

    # `concurrent.futures.ProcessPoolExecutor` gives up all jobs when one of its processes is killed, and leaves its
    # processes behind when its own is; here every process has a connection of its own, which ends with either side.

    def __init__(self, workers: int, options: RunOptions) -> None:
        if workers < 1:
            raise PaperArgumentError(f"workers={workers} is not accepted. Give an integer of at least 1.")
        self.workers = workers
        self._options = options
        self._context = multiprocessing.get_context("spawn")  # a forked process could not use CUDA, and may lock up
        self._processes: list[_Worker] = []

    def __enter__(self) -> Self:
        """Return the pool."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the processes, whatever they are doing."""
        for worker in self._processes:
            worker.connection.close()
            worker.process.terminate()
        for worker in self._processes:
            worker.process.join(_SECONDS_TO_END)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._processes.clear()

    @property
    def has_room(self) -> bool:
        """Whether a process is free, or may still be started."""
        return self.running < self.workers

    @property
    def running(self) -> int:
        """How many jobs are being done."""
        return sum(worker.job is not None for worker in self._processes)

    def expect(self, jobs: int) -> None:
        """Start processes for so many jobs: they import their libraries while data are prepared."""
        for _ in range(min(jobs, self.workers) - len(self._processes)):
            self._new_worker()

    def start(self, job: Job) -> None:
        """Give a job to a free process."""
        free = next((worker for worker in self._processes if worker.job is None), None)
        if free is not None:
            try:
                free.connection.send(job)
            except OSError:  # it died while it had nothing to do
                self._drop(free)
                free = None
        if free is None:
            free = self._new_worker()
            free.connection.send(job)
        free.job = job

    def wait(self, seconds: float) -> Iterator[tuple[Job, Message]]:
        """Yield jobs with what is said of them: any number of `Progress`, then one `Done` or `Failure`."""
        busy = {worker.connection: worker for worker in self._processes if worker.job is not None}
        for connection in wait(list(busy), seconds):
            worker = busy[connection]  # type: ignore[index]  # what was waited for are connections
            job = worker.job
            if job is None:
                continue
            try:
                message: Message = worker.connection.recv()
            except (EOFError, OSError):
                message = self._drop(worker)
            if not isinstance(message, Progress):
                worker.job = None
            yield job, message

    def _new_worker(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=work, args=(theirs, self._options), daemon=True)
        gpu = self._least_used_gpu()
        variables = threads_limited(self._options.threads) | ({} if gpu is None else {VISIBLE_GPUS: gpu})
        with _interrupts_ignored(), variables_set(variables):
            process.start()
        theirs.close()  # so that the connection ends with the process
        worker = _Worker(process, ours, gpu)
        self._processes.append(worker)
        return worker

    def _least_used_gpu(self) -> str | None:
        """Return the GPU that the fewest processes have, of equal ones the first; ``None`` if none are handed out."""
        used = [worker.gpu for worker in self._processes]
        return min(self._options.gpus, key=used.count, default=None)

    def _drop(self, worker: _Worker) -> Failure:
        """Forget a process that died, and say how it ended."""
        self._processes.remove(worker)
        worker.connection.close()
        worker.process.join(_SECONDS_TO_END)
        code = worker.process.exitcode
        if code is None or code >= 0:
            return Failure("lost", f"The process ended with exit code {code}.")
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = ", often for want of memory: give fewer --workers" if name == "SIGKILL" else ""
        return Failure("lost", f"The process was killed by {name}{hint}.")


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Start processes that ignore Ctrl-C from their first moment: what is ignored stays so in a new process."""
    if threading.current_thread() is not threading.main_thread():  # only it may set handlers
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
