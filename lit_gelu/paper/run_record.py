"""`RunRecord`: what is kept of one run of the protocol, and the file that holds one a line."""

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from lit_gelu.errors import shown
from lit_gelu.files import is_folder, parse_json
from lit_gelu.paper.errors import RecordsError

SCHEMA = 1
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
}
_OF_NUMBERS = frozenset({"setting", "result"})


@dataclass(frozen=True)
class Curve:
    """Values measured in the course of a run.

    Args:
        epoch: How many epochs had passed at each measurement; fractions where there are several an epoch.
        value: What was measured, of the same length; NaN where it was no finite number.

    Raises:
        RecordsError: If the two differ in length.

    Example:
        >>> Curve((0.5, 1.0), (0.3, 0.2)).value[-1]
        0.2
    """

    epoch: tuple[float, ...]
    value: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse a curve whose two parts do not belong together."""
        if len(self.epoch) != len(self.value):
            raise RecordsError(
                f"A curve with {len(self.epoch)} epochs and {len(self.value)} values given; accepted: as many of each."
            )


@dataclass(frozen=True)
class RunResult:
    """A run in a few numbers; ``None`` where the task has no such figure, or it was no finite number.

    Losses are in the task's own unit (nats, or squared error per pixel), errors shares from 0 to 1.

    Args:
        best_val_epoch: Epochs that had passed at the (first) evaluation with the lowest validation error.
        best_val_error: The validation error there.
        test_error_at_best_val: The test error there.
        last_test_error: The test error at the end.
        last_test_loss: The test loss at the end.
        last_train_loss: The training loss at the end, the mean since the evaluation before.
    """

    best_val_epoch: float | None = None
    best_val_error: float | None = None
    test_error_at_best_val: float | None = None
    last_test_error: float | None = None
    last_test_loss: float | None = None
    last_train_loss: float | None = None


@dataclass(frozen=True)
class Robustness:
    """Test error and test loss with uniform noise added to the inputs.

    Args:
        levels: The noise's bounds: level a means U[-a, a].
        error: Share of wrong classes at each level.
        loss: Mean cross-entropy at each level, in nats; NaN where it was no finite number.
    """

    levels: tuple[float, ...]
    error: tuple[float, ...]
    loss: tuple[float, ...]


@dataclass(frozen=True)
class RunRecord:
    """One run: what it was, on what, and what came out. One JSON object a line in ``runs.jsonl``.

    Args:
        key: The run's name, unique in its file: ``"mnist/gelu/keep=0.5/lr=0.001/seed=0"``.
        preset: ``"full"``, the paper's protocol, or ``"quick"``, a short version of it.
        experiment: Name of the experiment, such as ``"mnist"``.
        arm: What is compared with what, such as ``"gelu"``.
        activation: The activation's canonical text: `lit_gelu.activations.create` builds it again.
        setting: The values of the experiment's settings, such as ``{"keep": 0.5}``; empty if it has none.
        learning_rate: The (base) learning rate.
        seed: Of weights, batches and noise.
        config: ``"model"``, ``"data"`` (both ``class_path`` and ``init_args``), ``"trainer"`` (its arguments) and
            ``"measurement"`` (what was recorded, how often): all that is needed to make the run again.
        versions: Of the packages that took part.
        machine: What it ran on.
        started: Date and time, ISO 8601, UTC.
        seconds: How long it took, evaluations and reading of the data included.
        curves: ``"train_loss"``, ``"train_error"``, ``"val_loss"``, ``"val_error"``, ``"test_loss"``, ``"test_error"``;
            those that the task does not have are absent. Training curves hold the mean since the measurement before.
        result: The run in a few numbers.
        robustness: The test set under noise, where that is measured.
        status: ``"finished"``, or ``"diverged"`` if the training loss was no finite number any more.
        shared_from: Key of the identical run that these numbers were taken from; ``None`` if this one was trained.
        data: What the data module logs of itself as hyper-parameters once it has read its files: which corpus it found.
    """

    key: str
    preset: str
    experiment: str
    arm: str
    activation: str
    setting: dict[str, float]
    learning_rate: float
    seed: int
    config: dict[str, Any]
    versions: dict[str, str]
    machine: dict[str, Any]
    started: str
    seconds: float
    curves: dict[str, Curve]
    result: RunResult
    robustness: Robustness | None = None
    status: Status = "finished"
    shared_from: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    schema: int = field(default=SCHEMA)

    def to_json(self) -> str:
        """Return the record as one line of JSON, numbers that are not finite as ``null``.

        Returns:
            The line, without a line break at its end.
        """
        return json.dumps(_with_null(asdict(self)), allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> "RunRecord":
        """Read a record from its line.

        Args:
            line: What `to_json` wrote.

        Returns:
            The record.

        Raises:
            RecordsError: If the line is not JSON, is of another schema, or lacks a field.

        Example:
            >>> RunRecord.from_json('{"schema": 2}')  # doctest: +ELLIPSIS
            Traceback (most recent call last):
                ...
            lit_gelu.paper.errors.RecordsError: A record of schema 2 given; this version of lit-gelu reads schema 1...
        """
        try:
            given = parse_json(line)
        except ValueError as error:
            where = f"{error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else error
            raise RecordsError(f"The line is not JSON ({where}).") from None
        schema = given.get("schema") if isinstance(given, dict) else None
        if schema != SCHEMA:
            raise RecordsError(
                f"A record of schema {shown(schema)} given; this version of lit-gelu reads schema {SCHEMA}. Read the "
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
            return cls(**given | parts)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            expected = ", ".join(part.name for part in fields(cls))
            raise RecordsError(f"The record is not complete ({error}). Expected: {expected}.") from None


def read_records(path: str | Path) -> list[RunRecord]:
    """Read a file of records.

    A last line that was cut when the process was killed is left out, with a warning: that run was not finished.

    Args:
        path: The file ``runs.jsonl``, or the folder that holds it.

    Returns:
        The records in the order in which the runs were finished.

    Raises:
        FileNotFoundError: If there is no such file.
        RecordsError: If a line is damaged, or two lines have the same key.
    """
    file = Path(path)
    file = file / RECORDS_FILE if is_folder(file) else file
    complete, cut = split_cut_line(file.read_bytes())
    if cut:
        warnings.warn(
            f"{str(file)!r}: the last line is cut off and left out; that run counts as not finished.", stacklevel=2
        )
    return list(parse_records(complete, str(file)).values())


def parse_records(content: bytes, file: str) -> dict[str, RunRecord]:
    """Read records from a file's content.

    Args:
        content: One record a line, in UTF-8; empty lines are passed over.
        file: What an error calls the file.

    Returns:
        From key to record, in order.

    Raises:
        RecordsError: If a line is damaged, or two lines have the same key.
    """
    records: dict[str, RunRecord] = {}
    numbers: dict[str, int] = {}
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = RunRecord.from_json(_decoded(line))
        except RecordsError as error:
            raise RecordsError(f"{file!r}, line {number}: {error} Mend or delete the line.") from None
        if record.key in records:
            raise RecordsError(
                f"{file!r}: the run {record.key!r} is in line {numbers[record.key]} and in line {number}. Delete one."
            )
        records[record.key], numbers[record.key] = record, number
    return records


def _decoded(line: bytes) -> str:
    """Return a line as text.

    Raises:
        RecordsError: If it is no UTF-8.
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordsError(f"The line is not UTF-8 ({error.reason} at byte {error.start}).") from None


def split_cut_line(content: bytes) -> tuple[bytes, bytes]:
    r"""Separate the complete lines of a file from what a kill left of the last one.

    Every record is written with its line break, so what follows the last line break was cut.

    Args:
        content: The file's content.

    Returns:
        The complete lines, and the rest (empty if nothing was cut).

    Example:
        >>> split_cut_line(b'{"key": "a"}\n{"ke')
        (b'{"key": "a"}\n', b'{"ke')
    """
    end = content.rfind(b"\n") + 1
    return content[:end], content[end:]


def _check_kinds(given: Mapping[str, Any]) -> None:
    """Refuse fields of another kind than `RunRecord` has; those that are missing are found by its constructor.

    Raises:
        RecordsError: If there is one.
    """
    for name, kinds in _KINDS.items():
        value = given.get(name)
        values = value.values() if name in _OF_NUMBERS and isinstance(value, dict) else ()
        numbers = all(item is None or _is_number(item) for item in values)
        if name in given and not (isinstance(value, kinds) and not isinstance(value, bool) and numbers):
            raise RecordsError(
                f"{name}={shown(value)} given; accepted: {' or '.join(kind.__name__ for kind in kinds)}."
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _with_null(value: Any) -> Any:
    """Put ``None`` in the place of every number that is not finite: JSON has none of them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _with_null(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_null(item) for item in value]
    return value


def _part(kind: type[_Part], given: Mapping[str, list[float | None]]) -> _Part:
    """Build a dataclass of number sequences, NaN where JSON has ``null``."""
    return kind(**{
        name: tuple(math.nan if value is None else float(value) for value in values) for name, values in given.items()
    })


def result_of(curves: Mapping[str, Curve]) -> RunResult:
    """Return a run in a few numbers.

    Args:
        curves: Its curves.

    Returns:
        The numbers; ``None`` where there is no such curve or the value is no finite number.

    Example:
        >>> curves = {
        ...     "val_error": Curve((1.0, 2.0, 3.0), (0.3, 0.1, 0.1)),
        ...     "test_error": Curve((1.0, 2.0, 3.0), (0.4, 0.2, 0.15)),
        ... }
        >>> result = result_of(curves)
        >>> result.best_val_epoch, result.test_error_at_best_val, result.last_test_error
        (2.0, 0.2, 0.15)
    """
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
