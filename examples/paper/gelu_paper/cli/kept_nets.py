"""Which runs have no checkpoint of their own after ``lit-gelu paper run --checkpoints``: those that it did not make."""

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from gelu_paper.cli.listed import say_listed
from lit_gelu.files import is_file
from gelu_paper.planning import RunRequest
from gelu_paper.protocol.cells import Cell
from gelu_paper.records.run_record import RECORDS_FILE, RunRecord

CHECKPOINTS_FOLDER = "checkpoints"  # in that of the results


def say_runs_without(
    request: RunRequest,
    records: Mapping[str, RunRecord],
    new: Collection[str],
    folder: Path,
    unkept: Collection[str] = (),
) -> None:
    """Say which runs of a request have no checkpoint, where the same net is kept, and how to get one.

    Args:
        request: What was asked for.
        records: What is in the results now, by key.
        new: The keys of those that this command recorded.
        folder: The results of all shards.
        unkept: The keys of new ones whose checkpoint could not be written.
    """
    # What this command made has one, though perhaps on another machine's disk: there Ray's nodes may write them.
    made = {key for key in new if records[key].shared_from is None} - set(unkept)
    folders = [folder, *sorted(folder.glob("shard-*-of-*"))]
    copies: list[str] = []
    absent: list[str] = []
    failed: list[str] = []
    for record in _asked_for(request, records):
        if record.key in made or _is_kept(record.key, folders):
            continue
        source = record.shared_from
        is_copy = source is not None and (source in made or _is_kept(source, folders))
        kind = failed if {record.key, source} & set(unkept) else copies if is_copy else absent
        kind.append(record.key if source is None else f"{record.key}, identical to {source}")
    say_listed(copies, "runs have no checkpoint of their own; that of the identical run is of the same net")
    say_listed(absent, "runs have no checkpoint, as they were finished before")
    say_listed(failed, "runs have no checkpoint, as it could not be written")
    if absent or failed:
        sys.stderr.write(
            f"To get one, give another folder (--results), or delete the lines of these runs in {RECORDS_FILE} and "
            "give the same command again.\n"
        )


def _asked_for(request: RunRequest, records: Mapping[str, RunRecord]) -> list[RunRecord]:
    """Return the records of the runs that were asked for."""
    keys = {cell.key for cell in request.first_cells()}
    searched = [experiment for experiment in request.experiments() if experiment.learning_rate_from is not None]
    # The learning rate is a part of the key. Here it is the one that was found, whatever it is.
    places = {_place(cell) for experiment in searched for cell in request.later_cells(experiment)}
    return [record for key, record in records.items() if key in keys or _place(record) in places]


def _place(run: Cell | RunRecord) -> tuple[object, ...]:
    """Return all of a run's key but its learning rate."""
    return run.experiment, run.arm, *run.setting.items(), run.seed


def _is_kept(key: str, folders: Sequence[Path]) -> bool:
    return any(is_file(folder / CHECKPOINTS_FOLDER / f"{key}.ckpt") for folder in folders)
