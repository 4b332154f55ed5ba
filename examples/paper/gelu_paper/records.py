"""`RunRecord`: what is kept of one run, and the file that holds one a line."""

import json
import lzma
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

from lit_gelu.errors import DataError

SCHEMA = 3  # 1 and 2 have `result` too, which follows from the curves
RECORDS_FILE = "runs.jsonl"


@dataclass(frozen=True)
class Curve:
    """Values measured in the course of a run."""

    epoch: tuple[float, ...]  # how many had passed at each measurement; fractions where there are several an epoch
    value: tuple[float, ...]  # NaN where it was no finite number


@dataclass(frozen=True)
class Robustness:
    """Test error and test loss with uniform noise added to the inputs."""

    levels: tuple[float, ...]  # level a means U[-a, a]
    error: tuple[float, ...]  # share of wrong classes at each level
    loss: tuple[float, ...]  # mean cross-entropy, nats; NaN where it was no finite number


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run: what it was, on what, and what came out. One JSON object a line in ``runs.jsonl``."""

    key: str  # unique in its file: "mnist/gelu/keep=0.5/lr=0.001/seed=0"
    preset: str
    experiment: str
    arm: str
    activation: str  # canonical text: `lit_gelu.activations.create` builds it again
    setting: dict[str, float]  # values of the experiment's settings, such as {"keep": 0.5}
    learning_rate: float
    seed: int
    config: dict[str, Any]  # all that is needed to make the run again, as in `Cell`
    versions: dict[str, str]  # of the packages that took part
    machine: dict[str, Any]
    started: str  # ISO 8601, UTC
    seconds: float  # evaluations and reading of the data included
    # "train_loss", "train_error", "val_loss", "val_error", "test_loss", "test_error", those that the task has. Training
    # curves hold the mean since the measurement before.
    curves: dict[str, Curve]
    robustness: Robustness | None = None
    status: Literal["finished", "diverged"] = "finished"  # diverged: the training loss was no finite number any more
    shared_from: str | None = None  # key of the identical run whose numbers these are; None if this one was trained
    data: dict[str, Any] = field(default_factory=dict)  # what the data module says of itself: which corpus it found
    group: dict[str, Any] | None = None  # how the run was made together with others, by earlier versions
    schema: int = SCHEMA

    def to_json(self) -> str:
        """Return the record as one line of JSON, numbers that are not finite as ``null``."""
        return json.dumps(_finite(asdict(self)), allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        """Read a record from its line, of this or an earlier schema.

        Args:
            line: What `to_json` wrote.

        Returns:
            The record.

        Raises:
            DataError: If it is no record.
        """
        try:
            content = json.loads(line)
            is_accepted = content["schema"] in range(1, SCHEMA + 1)
            values = {part.name: content[part.name] for part in fields(cls) if part.name in content}
            values["curves"] = {name: Curve(**_sequences(curve)) for name, curve in content["curves"].items()}
            if content["robustness"] is not None:
                values["robustness"] = Robustness(**_sequences(content["robustness"]))
            record = cls(**values | {"schema": SCHEMA})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"It is no record of a run ({type(error).__name__}: {error}).") from None
        if not is_accepted:
            raise DataError(f"It is a record of schema {content['schema']!r}; accepted: 1 to {SCHEMA}.")
        return record


def read_records(path: str | os.PathLike[str]) -> list[RunRecord]:
    """Read records, one a line, in the order in which the runs were finished.

    A last line without its end is left out: a kill cut it off while it was written.

    Args:
        path: A file, packed by xz or not, or a folder with ``runs.jsonl``.

    Returns:
        The records.

    Raises:
        DataError: If there is no such file, a line is no record, or a run is in it twice.
    """
    file = Path(path) / RECORDS_FILE if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise DataError(f"There are no runs in {str(path)!r}. Give a file of records, or a folder with {RECORDS_FILE}.")
    content = lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes()
    records: dict[str, RunRecord] = {}
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            record = RunRecord.from_json(line)
        except DataError as error:
            raise DataError(f"{str(file)!r}, line {number}: {error} Mend or delete the line.") from None
        if record.key in records:
            raise DataError(f"{str(file)!r}, line {number}: the run {record.key!r} is there twice. Delete one.")
        records[record.key] = record
    return list(records.values())


def append_record(folder: Path, record: RunRecord) -> None:
    """Add a finished run to a folder; it is on the disk when this returns."""
    with (folder / RECORDS_FILE).open("a", encoding="utf-8", newline="\n") as file:
        file.write(record.to_json() + "\n")
        file.flush()
        os.fsync(file.fileno())


def cut_unfinished_line(folder: Path) -> None:
    """Take away what a kill left of a last line, so that the next record begins on a line of its own."""
    file = folder / RECORDS_FILE
    if file.exists():
        os.truncate(file, file.read_bytes().rfind(b"\n") + 1)


def fingerprint(config: Mapping[str, Any], seed: int) -> str:
    """Return text that two runs have in common if and only if they train the same net in the same way."""
    # Noise on the trained net is no part of the training.
    parts = {name: config[name] for name in ("model", "data", "trainer")}
    return json.dumps([parts, config["measurement"].get("evaluations_per_epoch"), seed], sort_keys=True)


def protocol(config: Mapping[str, Any], data: Mapping[str, Any], setting: Iterable[str]) -> dict[str, Any]:
    """Return what the runs of an experiment have in common: all but activation, learning rate, settings and noise."""
    varied = {"activation", "learning_rate", *setting}
    arguments = {name: value for name, value in config["model"]["init_args"].items() if name not in varied}
    plain: dict[str, Any] = json.loads(
        json.dumps({
            **config,
            "model": {**config["model"], "init_args": arguments},
            "measurement": config["measurement"].get("evaluations_per_epoch"),
            "data found": data,
        })
    )
    return plain


def check_one_protocol(records: Iterable[RunRecord]) -> None:
    """Refuse runs of one experiment by two protocols: a median over both, or a choice among them, is of neither."""
    firsts: dict[str, RunRecord] = {}
    for record in records:
        first = firsts.setdefault(record.experiment, record)
        varied = {*first.setting, *record.setting}
        one, other = (protocol(run.config, run.data, varied) for run in (first, record))
        text = differences({"preset": first.preset, **one}, {"preset": record.preset, **other})
        if text:
            raise DataError(
                f"{first.key!r} and {record.key!r} are runs of different protocols ({text}), which have no median in "
                "common. Keep the runs of each in a folder of its own (--results)."
            )


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Say where two trees of plain data differ, and what each has there; empty if nowhere."""
    first, second = _leaves(one), _leaves(other)
    return "; ".join(
        f"{path}: {first.get(path)!r} and {second.get(path)!r}"
        for path in dict.fromkeys([*first, *second])
        if first.get(path) != second.get(path)
    )


def _leaves(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        leaves |= _leaves(value, f"{path}{name}.") if isinstance(value, Mapping) else {path + name: value}
    return leaves


def _sequences(lists: Mapping[str, list[float | None]]) -> dict[str, tuple[float, ...]]:
    """Return columns of numbers of one length, NaN where JSON has ``null``."""
    columns = {name: tuple(math.nan if x is None else float(x) for x in values) for name, values in lists.items()}
    if len({len(values) for values in columns.values()}) > 1:
        raise ValueError(f"columns {', '.join(columns)} are not of one length")
    return columns


def _finite(value: Any) -> Any:
    """Return plain data with None in the place of numbers that are not finite."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
