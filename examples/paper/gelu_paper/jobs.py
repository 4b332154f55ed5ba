"""What the process that plans the runs and those that make them say to each other."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gelu_paper.protocol.cells import Cell, data_name
from gelu_paper.records.run_record import RunRecord

FailureKind = Literal["missing", "error", "lost", "no rate"]


@dataclass(frozen=True)
class RunOptions:
    """Where and on what runs are made: what is no part of their configuration."""

    root: str | None = None  # folder of the data; None leaves it to the data modules (LIT_GELU_DATA)
    accelerator: str = "cpu"  # the Trainer's
    threads: int = 1  # of each process
    checkpoints: str | None = None  # folder for a checkpoint of every run's last epoch
    groups: str | None = None  # folder for what an unfinished group goes on from after a kill
    gpus: tuple[str, ...] = ()  # one for each process in turn, as CUDA_VISIBLE_DEVICES names it; empty for all to all


@dataclass(frozen=True)
class Preparation:
    """Make sure that data are there, and compute what is kept of them on the disk, before several runs need them."""

    key: str  # where progress is shown
    data: Mapping[str, Any]  # class_path and init_args
    requires: Mapping[str, str] = field(default_factory=dict)  # of a property of the data module then

    @property
    def data_name(self) -> str:
        """Text that two jobs with the same data have in common."""
        return data_name(self.data)


@dataclass(frozen=True)
class CellGroup:
    """Runs of one net that a process makes together, as replicas."""

    cells: tuple[Cell, ...]  # their order is that of the replicas

    @property
    def key(self) -> str:
        """Where progress is shown."""
        return f"{len(self.cells)} runs together, the first {self.cells[0].key}"

    @property
    def data_name(self) -> str:
        """Text that two jobs with the same data have in common."""
        return self.cells[0].data_name

    @property
    def name(self) -> str:
        """Text for a file that two groups have in common if and only if they train the same nets in the same order."""
        return hashlib.sha256("\n".join(cell.fingerprint for cell in self.cells).encode()).hexdigest()[:32]

    def halves(self) -> "list[Cell | CellGroup]":
        """Return two jobs that make the same runs; those of one activation stay together as far as that goes."""
        middle = len(self.cells) // 2
        return [together(part) for part in (self.cells[:middle], self.cells[middle:])]


def together(cells: tuple[Cell, ...]) -> "Cell | CellGroup":
    """Return the job that makes some runs, which may be one."""
    return CellGroup(cells) if len(cells) > 1 else cells[0]


Job = Cell | CellGroup | Preparation


def cells_of(job: Job) -> tuple[Cell, ...]:
    """Return the runs that a job makes."""
    if isinstance(job, CellGroup):
        return job.cells
    return (job,) if isinstance(job, Cell) else ()


@dataclass(frozen=True)
class Progress:
    """How many epochs of a run, or of each run of a group, have passed, and what went wrong without ending it."""

    epoch: float
    epoch_steps: int = 0  # optimizer steps in an epoch of one run; 0 where that is not said
    warning: str = ""  # of a file that could not be written; said once, however often it is sent
    unkept: str = ""  # key of the run whose checkpoint that was; a pool may drop it, `Done` has them all


@dataclass(frozen=True)
class Done:
    """A job's end: the records of its runs; none for a preparation."""

    records: tuple[RunRecord, ...] = ()
    unkept: Mapping[str, str] = field(default_factory=dict)  # why the checkpoint of a run is not there, by its key


@dataclass(frozen=True)
class Failure:
    """A job's other end."""

    # "missing": data, or a library that they need; "no rate": a search has found none; "lost": the process died.
    kind: FailureKind
    message: str
    trace: str = ""  # empty for a mistake that the user can mend
    begun: int = 1  # how often the job was


@dataclass(frozen=True)
class Restart:
    """A job's process or node was lost, and the job is begun again: a group goes on from its checkpoint."""

    reason: str
    attempt: int  # counted from 1, without the first start
    attempts: int  # at most


Message = Progress | Restart | Done | Failure
