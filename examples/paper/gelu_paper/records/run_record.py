"""`RunRecord`: what is kept of one run of the protocol, and the file that holds one a line."""

import json
import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from lit_gelu.errors import shown
from lit_gelu.files import is_folder, parse_json, without_nonfinite
from gelu_paper.errors import RecordsError

SCHEMA = 2
READABLE = (1, SCHEMA)  # 1 has no `group`
RECORDS_FILE = "runs.jsonl"
Status = Literal["finished", "diverged"]
_Part = TypeVar("_Part")
_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("key", "preset", "experiment", "arm", "activation", "started"), (str,)),
    **dict.fromkeys(("setting", "config", "versions", "machine", "curves", "result", "data"), (dict,)),
    **dict.fromkeys(("learning_rate", "seconds"), (int, float)),
    "seed": (int,),
    "robustness": (dict, type(None)),
    "shared_from": (str, type(None)),
    "group": (dict, type(None)),
}
_CONFIG_PARTS = ("model", "data", "trainer", "measurement")


@dataclass(frozen=True)
class Curve:
    """Values measured in the course of a run."""

    epoch: tuple[float, ...]  # how many had passed at each measurement; fractions where there are several an epoch
    value: tuple[float, ...]  # NaN where it was no finite number

    def __post_init__(self) -> None:
        """Refuse a curve whose two parts do not belong together."""
        if len(self.epoch) != len(self.value):
            raise RecordsError(
                f"A curve with {len(self.epoch)} epochs and {len(self.value)} values given; accepted: as many of each."
            )


@dataclass(frozen=True)
class RunResult:
    """A run in a few numbers; ``None`` where the task has no such figure, or it was no finite number."""

    # Losses are in the task's own unit (nats, or squared error per pixel), errors shares from 0 to 1.

    best_val_epoch: float | None = None  # that had passed at the first evaluation with the lowest validation error
    best_val_error: float | None = None
    test_error_at_best_val: float | None = None
    last_test_error: float | None = None
    last_test_loss: float | None = None
    last_train_loss: float | None = None  # the mean since the evaluation before


@dataclass(frozen=True)
class Robustness:
    """Test error and test loss with uniform noise added to the inputs."""

    levels: tuple[float, ...]  # level a means U[-a, a]
    error: tuple[float, ...]  # share of wrong classes at each level
    loss: tuple[float, ...]  # mean cross-entropy, nats; NaN where it was no finite number

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        if not len(self.levels) == len(self.error) == len(self.loss):
            raise RecordsError(
                f"{len(self.levels)} levels of noise, {len(self.error)} errors and {len(self.loss)} losses given; "
                "accepted: as many of each."
            )


@dataclass(frozen=True)
class RunRecord:
    """One run: what it was, on what, and what came out. One JSON object a line in ``runs.jsonl``."""

    key: str  # unique in its file: "mnist/gelu/keep=0.5/lr=0.001/seed=0"
    preset: str  # "full", the paper's protocol, or "quick", a short version of it
    experiment: str
    arm: str  # what is compared with what, such as "gelu"
    activation: str  # canonical text: `lit_gelu.activations.create` builds it again
    setting: dict[str, float]  # values of the experiment's settings, such as {"keep": 0.5}
    learning_rate: float
    seed: int  # of weights, batches and noise
    # "model" and "data" (class_path and init_args), "trainer" (its arguments) and "measurement" (what was recorded, how
    # often): all that is needed to make the run again.
    config: dict[str, Any]
    versions: dict[str, str]  # of the packages that took part
    machine: dict[str, Any]
    started: str  # ISO 8601, UTC
    seconds: float  # evaluations and reading of the data included
    # "train_loss", "train_error", "val_loss", "val_error", "test_loss", "test_error", those that the task has. Training
    # curves hold the mean since the measurement before.
    curves: dict[str, Curve]
    result: RunResult
    robustness: Robustness | None = None
    status: Status = "finished"  # or "diverged": the training loss was no finite number any more
    shared_from: str | None = None  # key of the identical run whose numbers these are; None if this one was trained
    data: dict[str, Any] = field(default_factory=dict)  # what the data module logs of itself: which corpus it found
    # Of a run that was made in a group of replicas: "size", "seconds" (of the whole group; `seconds` is its share) and
    # "executor". All else is as if it had been made alone; the training loss is to 1e-6, the other curves to the bit.
    group: dict[str, Any] | None = None
    schema: int = field(default=SCHEMA)

    def to_json(self) -> str:
        """Return the record as one line of JSON, numbers that are not finite as ``null``."""
        return json.dumps(without_nonfinite(asdict(self), as_text=False), allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> "RunRecord":
        """Read a record from its line, what `to_json` wrote."""
        try:
            given = parse_json(line)
        except ValueError as error:
            where = f"{error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else error
            raise RecordsError(f"The line is not JSON ({where}).") from None
        schema = given.get("schema") if isinstance(given, dict) else None
        if schema not in READABLE or isinstance(schema, bool):
            raise RecordsError(
                f"A record of schema {shown(schema)} given; this version of lit-gelu reads schemas "
                f"{' and '.join(map(str, READABLE))}. Read the "
                "file with the version that wrote it, or repeat the runs in another folder."
            )
        if given.get("status") not in get_args(Status):
            raise RecordsError(f"status={shown(given.get('status'))} given; accepted: {', '.join(get_args(Status))}.")
        _check_kinds(given)
        try:
            parts = {
                "curves": {name: _part(Curve, curve) for name, curve in given["curves"].items()},
                "result": RunResult(**given["result"]),
                "robustness": None if given["robustness"] is None else _part(Robustness, given["robustness"]),
            }
            return cls(**given | parts | {"schema": SCHEMA})
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            expected = ", ".join(part.name for part in fields(cls))
            raise RecordsError(f"The record is not complete ({error}). Expected: {expected}.") from None


def read_records(path: str | Path) -> list[RunRecord]:
    """Read the records of a file, or of a folder's ``runs.jsonl``, in the order in which the runs were finished."""
    # A last line that was cut when the process was killed is left out, with a warning: that run was not finished.
    file = Path(path)
    file = file / RECORDS_FILE if is_folder(file) else file
    complete, cut = split_cut_line(file.read_bytes())
    if cut:
        warnings.warn(
            f"{str(file)!r}: the last line is cut off and left out; that run counts as not finished.", stacklevel=2
        )
    return list(parse_records(complete, str(file)).values())


def parse_records(content: bytes, file: str) -> dict[str, RunRecord]:
    """Read records from a file's content, one a line, by key; empty lines are passed over."""
    records: dict[str, RunRecord] = {}
    numbers: dict[str, int] = {}
    for number, record in parse_lines(content):
        if isinstance(record, RecordsError):
            raise RecordsError(f"{file!r}, line {number}: {record} Mend or delete the line.")
        if record.key in records:
            raise RecordsError(
                f"{file!r}: the run {record.key!r} is in line {numbers[record.key]} and in line {number}. Delete one."
            )
        records[record.key], numbers[record.key] = record, number
    return records


def parse_lines(content: bytes) -> Iterator[tuple[int, RunRecord | RecordsError]]:
    """Yield each line's number, from 1, and its record, or what is wrong with it; empty lines are passed over."""
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            yield number, RunRecord.from_json(_decoded(line))
        except RecordsError as error:
            yield number, error


def _decoded(line: bytes) -> str:
    """Return a line as text."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordsError(f"The line is not UTF-8 ({error.reason} at byte {error.start}).") from None


def split_cut_line(content: bytes) -> tuple[bytes, bytes]:
    """Separate the complete lines of a file from what a kill left of the last one, empty if nothing was cut."""
    # Every record is written with its line break, so what follows the last one was cut, unless it is a whole record: an
    # editor may have left the last line break out.
    end = content.rfind(b"\n") + 1
    is_whole = all(isinstance(found, RunRecord) for _, found in parse_lines(content[end:]))
    return (content, b"") if is_whole else (content[:end], content[end:])


def _check_kinds(given: Mapping[str, Any]) -> None:
    """Refuse fields of another kind than `RunRecord` has; those that are missing are found by its constructor."""
    for name, kinds in _KINDS.items():
        value = given.get(name)
        if name in given and not (isinstance(value, kinds) and not isinstance(value, bool)):
            raise RecordsError(
                f"{name}={shown(value)} given; accepted: {' or '.join(kind.__name__ for kind in kinds)}."
            )
    for name, values, null in (
        ("result", given.get("result", {}).values(), True),
        ("setting", given.get("setting", {}).values(), False),
        ("learning_rate", [given.get("learning_rate", 0)], False),
    ):
        _check_finite(name, values, null)
    if given.get("seed", 0) < 0:
        raise RecordsError(f"seed={shown(given['seed'])} given; accepted: 0 and above.")
    parts = given.get("config", {name: {} for name in _CONFIG_PARTS})
    if any(not isinstance(parts.get(name), dict) for name in _CONFIG_PARTS):
        raise RecordsError(
            f"config={shown(parts)} given; accepted: a mapping with the mappings {', '.join(_CONFIG_PARTS)}."
        )
    for name in ("model", "data"):
        arguments = parts[name].get("init_args", {})
        if not isinstance(arguments, dict):
            raise RecordsError(f"config.{name}.init_args={shown(arguments)} given; accepted: a mapping.")


def _check_finite(name: str, values: Iterable[Any], null: bool) -> None:
    """Refuse what is no finite number, except null where that is one."""
    for value in values:
        is_finite = _is_number(value) and abs(value) <= sys.float_info.max  # an int may be larger, NaN is not
        if not is_finite and not (null and value is None):
            raise RecordsError(f"{name}={shown(value)} given; accepted: finite numbers{' and null' if null else ''}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _part(kind: type[_Part], given: Mapping[str, list[float | None]]) -> _Part:
    """Build a dataclass of number sequences, NaN where JSON has ``null``."""
    return kind(**{
        name: tuple(math.nan if value is None else float(value) for value in values) for name, values in given.items()
    })


def result_of(curves: Mapping[str, Curve]) -> RunResult:
    """Return a run in a few numbers, ``None`` where there is no such curve or the value is no finite number."""
    last = {name: _finite(curve.value[-1]) if curve.value else None for name, curve in curves.items()}
    val, test = curves.get("val_error"), curves.get("test_error")
    finite = [] if val is None else [(value, epoch) for epoch, value in zip(val.epoch, val.value, strict=True)]
    finite = [pair for pair in finite if math.isfinite(pair[0])]
    best, epoch = min(finite) if finite else (None, None)  # of equal ones the first
    at_best = None
    if test is not None and epoch is not None:
        at_best = _finite(dict(zip(test.epoch, test.value, strict=True))[epoch])
    return RunResult(
        best_val_epoch=epoch,
        best_val_error=best,
        test_error_at_best_val=at_best,
        last_test_error=last.get("test_error"),
        last_test_loss=last.get("test_loss"),
        last_train_loss=last.get("train_loss"),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
