"""`Shard`: one of several disjoint parts of a grid, each made by its own command, and what the others have made."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lit_gelu.errors import shown
from lit_gelu.files import is_file
from gelu_paper.errors import PaperArgumentError, RecordsError
from gelu_paper.protocol.cells import Cell, identical_cells
from gelu_paper.records.run_record import RECORDS_FILE, RunRecord, parse_lines, split_cut_line

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Shard:
    """The ``index``-th of ``count`` parts, counted from 1."""

    # Parts go by place in what was asked for, whatever is finished: so they are the same after a kill. Every count-th
    # place makes parts of about the same length, as an experiment's runs stand beside each other.

    index: int
    count: int

    def __post_init__(self) -> None:
        """Refuse a part that does not exist."""
        if not 1 <= self.index <= self.count:
            raise PaperArgumentError(
                f"Shard {self.index}/{self.count} given; accepted: 1/{max(self.count, 1)} to "
                f"{max(self.count, 1)}/{max(self.count, 1)}. Shards count from 1: --array=1-8 for a SLURM array of 8."
            )

    @property
    def name(self) -> str:
        """The folder of its records within that of all parts."""
        return f"shard-{self.index}-of-{self.count}"

    def of_places(self, items: Sequence[_Item]) -> list[_Item]:
        """Return every ``count``-th item."""
        return list(items[self.index - 1 :: self.count])

    def of_cells(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return this part's cells; identical ones are in the same part, so that one of them is trained."""
        keys = {cell.key for group in self.of_places(identical_cells(cells)) for cell in group}
        return [cell for cell in cells if cell.key in keys]


def parse_shard(text: str) -> Shard:
    """Read ``2/8``, the second of eight parts."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip(), re.ASCII)
    if match is None:
        raise PaperArgumentError(f"--shard {shown(text)} given; accepted: I/N, such as 2/8, the second of eight parts.")
    return Shard(int(match[1]), int(match[2]))


def records_of_others(folder: Path, own: Path) -> dict[str, RunRecord]:
    """Return the records in a folder of all parts, merged ones and those of every part but one's own, by key."""
    # Other processes may be writing these files: a last line without its end is passed over, as is a damaged one, which
    # its own part refuses. Nothing is written here.
    files = [folder / RECORDS_FILE, *sorted(folder.glob(f"shard-*-of-*/{RECORDS_FILE}"))]
    records: dict[str, RunRecord] = {}
    for file in files:
        if file.parent != own and is_file(file):
            for _, found in parse_lines(split_cut_line(file.read_bytes())[0]):
                if not isinstance(found, RecordsError):
                    records.setdefault(found.key, found)
    return records
