"""What the process that plans the runs and those that make them say to each other."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lit_gelu.paper.cells import Cell
from lit_gelu.paper.run_record import RunRecord

FailureKind = Literal["missing", "error", "lost"]


@dataclass(frozen=True)
class RunOptions:
    """Where and on what runs are made: what is no part of their configuration.

    Args:
        root: Folder of the data; ``None`` leaves it to the data modules (the environment variable ``LIT_GELU_DATA``).
        accelerator: The Trainer's: ``"cpu"``, ``"cuda"``, ``"auto"``, ...
        threads: Of each process.
        checkpoints: Folder for a checkpoint of every run's last epoch; ``None`` for none.
    """

    root: str | None = None
    accelerator: str = "cpu"
    threads: int = 1
    checkpoints: str | None = None


@dataclass(frozen=True)
class Preparation:
    """Make sure that data are there, and compute what is kept of them on the disk, before several runs need them.

    Args:
        name: What it is called where progress is shown.
        data: ``class_path`` and ``init_args``.
        requires: From a property of the data module to the value it must have then.
    """

    name: str
    data: Mapping[str, Any]
    requires: Mapping[str, str] = field(default_factory=dict)


Job = Cell | Preparation


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Args:
        epoch: Epochs that have passed.
    """

    epoch: float


@dataclass(frozen=True)
class Done:
    """A job's end.

    Args:
        record: The run's record; ``None`` for a preparation.
    """

    record: RunRecord | None


@dataclass(frozen=True)
class Failure:
    """A job's other end.

    Args:
        kind: ``"missing"`` if data or a library that only they need are not there, ``"lost"`` if the process died.
        message: What went wrong.
        trace: The stack trace; empty for a mistake that the user can mend.
    """

    kind: FailureKind
    message: str
    trace: str = ""


Message = Progress | Done | Failure
