"""Where ``lit-gelu paper table`` and ``lit-gelu paper figures`` find the runs."""

from pathlib import Path

import jsonargparse

from lit_gelu.files import is_file
from lit_gelu.paper.errors import RecordsError
from lit_gelu.paper.run_record import RECORDS_FILE, RunRecord, read_records


class NoRunsError(RecordsError, FileNotFoundError):
    """A folder without the runs that were asked for."""


def add_results_arguments(parser: jsonargparse.ArgumentParser) -> None:
    """Add the arguments that say which runs are read."""
    parser.add_argument("--preset", choices=["quick", "full"], default="quick", help="whose runs; sets --results")
    parser.add_argument(
        "--results", metavar="FOLDER", default=None, help="where the runs are; by default runs/paper/PRESET"
    )


def results_folder(arguments: jsonargparse.Namespace) -> Path:
    """Return the folder of the runs."""
    return Path(arguments.results or f"runs/paper/{arguments.preset}")


def read_results(arguments: jsonargparse.Namespace) -> list[RunRecord]:
    """Read the runs."""
    folder = results_folder(arguments)
    remedy = f"Make runs with lit-gelu paper run --preset {arguments.preset}, or say where they are with --results."
    path = folder / RECORDS_FILE if folder.suffix != ".jsonl" else folder
    if not is_file(path):
        raise NoRunsError(f"There are no runs in {str(folder)!r} (no {path.name}). {remedy}")
    records = read_records(path)
    if not records:
        raise NoRunsError(f"There are no runs in {str(path)!r}: it is empty. {remedy}")
    return records
