"""`JobPool`: what a runner asks of the processes that make its runs, on this machine or on a cluster."""

from collections.abc import Iterator
from types import TracebackType
from typing import Protocol, Self

from gelu_paper.jobs import Job, Message


class JobPool(Protocol):
    """Takes jobs and says what becomes of them; within a ``with`` block, which leaves no process behind."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End what is running, whatever it is doing."""

    @property
    def workers(self) -> int:
        """How many jobs are done at a time."""

    @property
    def has_room(self) -> bool:
        """Whether another job may be started now."""

    @property
    def running(self) -> int:
        """How many jobs have neither ended nor failed."""

    def expect(self, jobs: int) -> None:
        """Learn how many jobs there will be, before the first of them can start."""

    def start(self, job: Job) -> None:
        """Begin a job."""

    def wait(self, seconds: float) -> Iterator[tuple[Job, Message]]:
        """Yield jobs with what is said of them in this time: notes, and in the end one ``Done`` or ``Failure``."""
