"""The process that makes runs: it takes jobs from a connection and answers on it, until the other side is gone."""

import logging
import signal
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch
from lightning.fabric.utilities.warnings import PossibleUserWarning

from lit_gelu.data import DataNotFoundError
from lit_gelu.errors import LitGeluError
from lit_gelu.paper.jobs import Done, Failure, Job, Message, Preparation, Progress, RunOptions
from lit_gelu.paper.training import DataCache, build_data, train


def work(connection: Connection, options: RunOptions) -> None:
    """Make the runs that come in, one after the other.

    Ends when the other side closes the connection, also if that process was killed: between runs at once, within a run
    at its next report, a second later.

    Args:
        connection: Jobs come in, messages go out; ``None`` ends the process.
        options: Where and on what runs are made.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the planning one ends the others
    torch.set_num_threads(options.threads)
    _quieten()
    data = DataCache(options.root)
    try:
        while (job := connection.recv()) is not None:
            connection.send(answer(job, data, options, lambda epoch: connection.send(Progress(epoch))))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # nobody is there to take the result


def answer(job: Job, data: DataCache, options: RunOptions, report: Callable[[float], None]) -> Message:
    """Do a job.

    Args:
        job: A run, or the preparation of data.
        data: Where data are kept between runs.
        options: Where and on what.
        report: Called with the epochs that have passed.

    Returns:
        `Done` or `Failure`: an error of one run is no reason to lose the others.

    Raises:
        BrokenPipeError: If the other side is gone.
        ConnectionResetError: If the other side is gone.
    """
    try:
        if isinstance(job, Preparation):
            prepare(job, options.root)
            return Done(None)
        return Done(train(job, data, options, report))
    except (BrokenPipeError, ConnectionResetError):
        raise
    except (DataNotFoundError, ImportError) as error:
        return Failure("missing", str(error))
    except LitGeluError as error:
        return Failure("error", str(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported with its trace, and the others go on
        return Failure("error", f"{type(error).__name__}: {error}", traceback.format_exc())


def prepare(job: Preparation, root: str | None) -> None:
    """Prepare data, and make sure that they are those that an experiment needs.

    Args:
        job: The data, and what is required of them.
        root: Their folder; ``None`` leaves it to the data module.

    Raises:
        DataNotFoundError: If they are not there, or others are.
    """
    module = build_data(job.data, root)
    module.prepare_data()
    for name, value in job.requires.items():
        if (found := getattr(module, name)) != value:
            raise DataNotFoundError(
                f"{type(module).__name__} found data whose {name} is {found!r}; this protocol needs {value!r}. Put "
                "those there, or run --preset quick, which takes what there is."
            )


def _quieten() -> None:
    """Turn off what Lightning says at each of hundreds of runs and what nobody could mend."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"lightning\.pytorch\.utilities\._pytree")
    warnings.filterwarnings("ignore", message="GPU available but not used")
