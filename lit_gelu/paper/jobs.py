"""What the process that plans the runs and those that make them say to each other."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lit_gelu.paper.cells import Cell, data_name
from lit_gelu.paper.run_record import RunRecord

FailureKind = Literal["missing", "error", "lost"]


@dataclass(frozen=True)
class RunOptions:
    """Where and on what runs are made: what is no part of their configuration."""

    root: str | None = None  # folder of the data; None leaves it to the data modules (LIT_GELU_DATA)
    accelerator: str = "cpu"  # the Trainer's
    threads: int = 1  # of each process
    checkpoints: str | None = None  # folder for a checkpoint of every run's last epoch
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


Job = Cell | Preparation


@dataclass(frozen=True)
class Progress:
    """How many epochs of a run have passed."""

    epoch: float


@dataclass(frozen=True)
class Done:
    """A job's end; the record is ``None`` for a preparation."""

    record: RunRecord | None


@dataclass(frozen=True)
class Failure:
    """A job's other end."""

    kind: FailureKind  # "missing": data, or a library that only they need; "lost": the process died
    message: str
    trace: str = ""  # empty for a mistake that the user can mend


@dataclass(frozen=True)
class Restart:
    """A job's process or node was lost, and the job is begun again: a group goes on from its checkpoint."""

    reason: str
    attempt: int  # counted from 1, without the first start
    attempts: int  # at most


Message = Progress | Restart | Done | Failure
