"""What is kept in a folder of results of groups that are not finished, so that they go on after a kill."""

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lit_gelu.files import parse_json
from gelu_paper.jobs import CellGroup
from gelu_paper.protocol.cells import Cell

GROUPS_FOLDER = ".groups"  # in that of the results


def checkpoint_file(folder: Path, group: CellGroup) -> Path:
    """Return where a group's checkpoint is."""
    return folder / f"{group.name}.ckpt"


def description_file(folder: Path, group: CellGroup) -> Path:
    """Return where it is said what a group's checkpoint is of."""
    return folder / f"{group.name}.json"


def description(group: CellGroup, versions: Mapping[str, str]) -> dict[str, Any]:
    """Return what is said of a group: which runs its replicas are, and what makes them."""
    return {"runs": [cell.fingerprint for cell in group.cells], "versions": dict(versions)}


def unfinished_groups(folder: Path, cells: Mapping[str, Cell], wanted: Collection[str]) -> list[CellGroup]:
    """Return the groups to go on with, of cells by fingerprint: those with a run that is wanted, and no unknown one."""
    # Runs that are recorded already stay in their group: its other replicas could not go on without them.
    found, taken = [], set[str]()
    for file in sorted(folder.glob("*.json")):
        runs = _runs(file)
        if file.with_suffix(".ckpt").exists() and set(runs) <= cells.keys() and set(runs) & (set(wanted) - taken):
            found.append(CellGroup(tuple(cells[run] for run in runs)))
            taken |= set(runs)
    return found


def forget_groups(folder: Path, recorded: Collection[str]) -> None:
    """Remove what is kept of groups all of whose runs, by fingerprint, are recorded."""
    for file in folder.glob("*.json"):
        if set(_runs(file)) <= set(recorded):
            _remove(file)


def forget_group(folder: Path, group: CellGroup) -> None:
    """Remove what is kept of a group."""
    _remove(description_file(folder, group))


def _runs(file: Path) -> list[str]:
    """Return the fingerprints in a description; none of what is no description."""
    try:
        found = parse_json(file.read_bytes())
    except (OSError, ValueError):
        return []
    runs = found.get("runs") if isinstance(found, dict) else None
    return runs if isinstance(runs, list) and all(isinstance(run, str) for run in runs) else []


def _remove(file: Path) -> None:
    """Remove a description and its checkpoint, and temporary files of it that a kill left."""
    for part in (file, *file.parent.glob(f".{file.stem}-*"), file.with_suffix(".ckpt")):
        part.unlink(missing_ok=True)
    if file.parent.is_dir() and not any(file.parent.iterdir()):
        with contextlib.suppress(OSError):  # another group has come meanwhile
            file.parent.rmdir()
