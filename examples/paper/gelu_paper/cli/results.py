"""Where the commands of ``lit-gelu paper`` find the runs: in a folder of results, or in a file of records."""

from collections.abc import Sequence
from pathlib import Path

import jsonargparse

from lit_gelu.files import is_file
from gelu_paper.errors import RecordsError
from gelu_paper.planning import RunRequest
from gelu_paper.records.run_record import RECORDS_FILE, RunRecord, read_records


class NoRunsError(RecordsError, FileNotFoundError):
    """A folder without the runs that were asked for."""


def add_results_arguments(parser: jsonargparse.ArgumentParser) -> None:
    """Add the arguments that say which runs are read."""
    parser.add_argument("--preset", choices=["quick", "full"], default="quick", help="whose runs; sets --results")
    parser.add_argument(
        "--results", metavar="FOLDER", default=None, help="where the runs are; by default runs/paper/PRESET"
    )


def given_results(arguments: jsonargparse.Namespace) -> Path:
    """Return where the runs are as it was given: a folder, or a file of records."""
    return Path(arguments.results or f"runs/paper/{arguments.preset}")


def results_folder(arguments: jsonargparse.Namespace) -> Path:
    """Return the folder of the runs; of a file of records the folder that it is in."""
    given = given_results(arguments)
    return given.parent if is_file(given) else given


def records_file(given: Path) -> Path:
    """Return a file of records that was given, or that of a folder, which may not be there."""
    return given if is_file(given) else given / RECORDS_FILE


def check_names(experiments: Sequence[str] = (), arms: Sequence[str] = ()) -> None:
    """Refuse names of experiments and arms that the paper's protocol does not have, as ``lit-gelu paper run`` does."""
    RunRequest("full", tuple(experiments), tuple(arms)).experiments()


def read_results(arguments: jsonargparse.Namespace) -> list[RunRecord]:
    """Read the runs."""
    given = given_results(arguments)
    path = records_file(given)
    remedy = f"Make runs with lit-gelu paper run --preset {arguments.preset}, or say where they are with --results."
    if not is_file(path):
        raise NoRunsError(f"There are no runs in {str(given)!r} (no {path.name}). {remedy}")
    records = read_records(path)
    if not records:
        raise NoRunsError(f"There are no runs in {str(path)!r}: it is empty. {remedy}")
    return records
