"""What a process does with a job, whoever started it: make the runs, or prepare their data, and say what went wrong."""

import logging
import traceback
import warnings
from collections.abc import Callable

from lightning.fabric.utilities.warnings import PossibleUserWarning

from lit_gelu.data import DataNotFoundError
from lit_gelu.errors import LitGeluError
from lit_gelu.extras import MissingExtraError
from gelu_paper.jobs import CellGroup, Done, Failure, Job, Message, Preparation, Progress, RunOptions
from gelu_paper.training.cell_training import DataCache, build_data, train
from gelu_paper.training.group_training import train_group


def answer(job: Job, data: DataCache, options: RunOptions, report: Callable[[Progress], None]) -> Message:
    """Do a job: an error of one run is no reason to lose the others, unless nobody is there to hear of it."""
    unkept: dict[str, str] = {}

    def hear(how_far: Progress) -> None:
        if how_far.unkept:
            unkept[how_far.unkept] = how_far.warning
        report(how_far)

    try:
        if isinstance(job, Preparation):
            prepare(job, options.root)
            return Done()
        if isinstance(job, CellGroup):
            return Done(tuple(train_group(job, data, options, hear)), unkept)
        return Done((train(job, data, options, hear),), unkept)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except (DataNotFoundError, MissingExtraError) as error:
        return Failure("missing", str(error))
    except LitGeluError as error:
        return Failure("error", str(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported with its trace, and the others go on
        return Failure("error", f"{type(error).__name__}: {error}", traceback.format_exc())


def prepare(job: Preparation, root: str | None) -> None:
    """Prepare data; those that an experiment does not accept are not found."""
    module = build_data(job.data, root)
    module.prepare_data()
    for name, value in job.requires.items():
        if (found := getattr(module, name)) != value:
            raise DataNotFoundError(
                f"{type(module).__name__} found data whose {name} is {found!r}; this protocol needs {value!r}. Put "
                "those there, or run --preset quick, which takes what there is."
            )


def quieten() -> None:
    """Turn off what Lightning says at each of hundreds of runs and what nobody could mend."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"lightning\.pytorch\.utilities\._pytree")
    warnings.filterwarnings("ignore", message="GPU available but not used")
