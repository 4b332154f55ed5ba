"""`JoinedResults`: the records of several folders of results as one, by key, with what is to be said of them."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lit_gelu.files import is_file, is_folder, without_nonfinite, write_atomically
from gelu_paper.errors import RecordsError
from gelu_paper.records.run_record import RECORDS_FILE, RunRecord, parse_lines, split_cut_line
from gelu_paper.records.run_store import RecordStore
from gelu_paper.results.one_protocol import check_one_protocol

_IDENTITY = frozenset({"experiment", "arm", "activation", "setting", "learning_rate", "seed", "config"})
_NUMBERS = frozenset({"status", "curves", "result", "robustness"})
_TRAINING_LOSSES = frozenset({"train_loss", "last_train_loss"})  # those of a run in a group are added up elsewise
_ROUNDING = 1e-6


@dataclass(frozen=True)
class ResultsFile:
    """A file of records as it was read: what is damaged in it is kept from the records and said."""

    file: str
    records: tuple[tuple[str, RunRecord], ...]  # each with its place, such as "'a/runs.jsonl', line 3"
    damaged: tuple[str, ...] = ()  # place and reason of each line that holds no record
    cut: bool = False  # whether the last line is cut off: a run that a kill stopped, or that is being written


@dataclass
class JoinedResults:
    """Records by key, the first of each; what else was found of a key, in words."""

    records: dict[str, RunRecord] = field(default_factory=dict)
    identical: int = 0  # records that were there already, in every field
    repeated: list[str] = field(default_factory=list)  # made more than once, with the same numbers
    differing: list[str] = field(default_factory=list)  # made more than once, with other numbers
    incompatible: list[str] = field(default_factory=list)  # other runs under the same name
    orphaned: list[str] = field(default_factory=list)  # copies of a record in whose place another one is kept
    places: dict[str, str] = field(default_factory=dict)  # where each record is, by its key

    def add(self, place: str, record: RunRecord) -> None:
        """Take a record, or note how it differs from the one of the same key that is there."""
        kept = self.records.get(record.key)
        if kept is None:
            self.records[record.key], self.places[record.key] = record, place
            return
        differences = _differences(kept, record)
        text = f"{record.key}: {', '.join(differences)} in {place} and in {self.places[record.key]}"
        if not differences:
            self.identical += 1
        elif _IDENTITY & set(differences):
            self.incompatible.append(text)
        elif _NUMBERS & set(differences):
            self.differing.append(text)
        else:
            self.repeated.append(text)

    def leave_out_orphans(self) -> None:
        """Take away copies that have other numbers than the record whose copies they are."""
        for key, record in list(self.records.items()):
            source = self.records.get(record.shared_from or "")
            if source is not None and {"curves", "status"} & set(_differences(source, record)):
                self.orphaned.append(f"{key} has other numbers than {source.key}, whose copy it is")
                del self.records[key]


def read_results_file(path: str | Path) -> ResultsFile:
    """Read a file of records, or a folder's ``runs.jsonl``, and say of each damaged line what is wrong with it."""
    file = Path(path)
    file = file / RECORDS_FILE if is_folder(file) else file
    complete, cut = split_cut_line(file.read_bytes())
    records, damaged = [], []
    for number, found in parse_lines(complete):
        place = f"{str(file)!r}, line {number}"
        if isinstance(found, RecordsError):
            damaged.append(f"{place}: {found}")
        else:
            records.append((place, found))
    return ResultsFile(str(file), tuple(records), tuple(damaged), bool(cut))


def join(files: Iterable[ResultsFile]) -> JoinedResults:
    """Join the records of files in their order; runs of two presets are not joined."""
    joined = JoinedResults()
    presets: dict[str, str] = {}
    for file in files:
        for place, record in file.records:
            presets.setdefault(record.preset, place)
            joined.add(place, record)
    if len(presets) > 1:
        found = " and ".join(f"of preset {name} ({place})" for name, place in presets.items())
        raise RecordsError(f"Runs {found} given; results hold runs of one preset. Join those of each by themselves.")
    joined.leave_out_orphans()
    return joined


def join_into(folder: Path, files: Sequence[ResultsFile], *, keep_first: bool = False) -> JoinedResults:
    """Join files into a folder, whose own records come first; nothing is written where two records contradict."""
    # `keep_first` takes the first of several records of a run that was made more than once. A folder without records is
    # not made for what contradicts. Runs of two protocols are refused: no table could show them, and no run be added.
    # What an experiment in the folder is already, does not matter to the runs of others.
    joined = join(files)
    if _contradicts(joined, keep_first):
        return joined
    if not is_file(folder / RECORDS_FILE):
        _check_protocols(joined, frozenset())
    with RecordStore(folder) as store:
        own = tuple((f"{str(store.path)!r}", record) for record in store.records.values())
        elsewhere = [file for file in files if Path(file.file).resolve() != store.path.resolve()]
        joined = join([ResultsFile(str(store.path), own), *elsewhere])
        if _contradicts(joined, keep_first):
            return joined
        _check_protocols(joined, store.records.keys())
        if list(joined.records.values()) != list(store.records.values()):
            with write_atomically(store.path) as temporary, temporary.open("w", encoding="utf-8", newline="") as out:
                out.writelines(f"{record.to_json()}\n" for record in joined.records.values())
    return joined


def _check_protocols(joined: JoinedResults, before: Collection[str]) -> None:
    """Refuse runs of an experiment by two protocols, where any of them was not there before."""
    of_experiment: dict[str, list[RunRecord]] = {}
    for record in joined.records.values():
        of_experiment.setdefault(record.experiment, []).append(record)
    for records in of_experiment.values():
        if any(record.key not in before for record in records):
            check_one_protocol(records, joined.places)


def _contradicts(joined: JoinedResults, keep_first: bool) -> bool:
    return bool(joined.incompatible or (joined.differing and not keep_first))


def _differences(record: RunRecord, other: RunRecord) -> list[str]:
    """Return the names of the fields in which two records differ; where both have no finite number they agree."""
    mine, others = _plain(record), _plain(other)
    is_rounded = record.group is not None or other.group is not None
    return [name for name in mine if not _agree(mine[name], others[name], is_rounded, is_loss=False)]


def _agree(one: Any, other: Any, is_rounded: bool, is_loss: bool) -> bool:
    """Tell whether two parts of records are the same; rounded losses may differ in their last digits."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            _agree(one[name], other[name], is_rounded, is_loss or name in _TRAINING_LOSSES) for name in one
        )
    if not (is_rounded and is_loss):
        return bool(one == other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(
            _agree(*pair, is_rounded, is_loss) for pair in zip(one, other, strict=True)
        )
    both = isinstance(one, float) and isinstance(other, float)
    return math.isclose(one, other, rel_tol=_ROUNDING) if both else bool(one == other)


def _plain(record: RunRecord) -> dict[str, Any]:
    plain: dict[str, Any] = without_nonfinite(asdict(record), as_text=False)
    return plain
