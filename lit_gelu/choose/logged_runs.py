"""Runs that are there, as rows: a table's, or one for each log folder of `CSVLogger` and of TensorBoard's logger."""

import csv
import importlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from lit_gelu.errors import ArgumentError, DataError, message_of
from lit_gelu.extras import need
from lit_gelu.report.content import flat
from lit_gelu.report.sources import METRICS, is_of_test, read_metrics_csv

_EVENTS = "events.out.tfevents.*"
_CONFIGURATIONS = ("config.yaml", "hparams.yaml")  # of `lit-gelu fit`, and of the loggers
LAST_STEP = "last step"  # the column of a folder that says how long a run was


def read_runs(paths: Iterable[str | os.PathLike[str]], metric: str) -> list[dict[str, Any]]:
    """Return a row for each run: what a table says of it, or settings, last value of the metric and last step.

    Raises:
        ArgumentError: If there are no runs at a path.
        DataError: If a file cannot be read.
        MissingExtraError: If a folder of TensorBoard is read without it.
    """
    rows: list[dict[str, Any]] = []
    for path in map(Path, paths):
        if path.is_file() and path.suffix == ".csv" and path.name != METRICS:
            rows += _table(path)
            continue
        files = [path] if path.is_file() else [*path.rglob(METRICS), *path.rglob(_EVENTS)]
        folders = sorted({file.parent for file in files})
        if not folders:
            raise ArgumentError(
                f"There are no runs at {str(path)!r}. Give folders of Lightning's CSVLogger or TensorBoardLogger, or a "
                ".csv file with a line for each run."
            )
        rows += [_run(folder, metric) for folder in folders]
    return rows


def _table(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{str(path)!r} cannot be read as a table: {message_of(error)}.") from error


def _run(folder: Path, metric: str) -> dict[str, Any]:
    row: dict[str, Any] = {"run": str(folder)}
    for name in _CONFIGURATIONS:
        if (folder / name).is_file():
            row |= flat(_plain_yaml(folder / name), text=repr)
    logged: dict[str, tuple[Sequence[int], Sequence[float]]]
    if (folder / METRICS).is_file():
        logged = {curve.name: (curve.steps, curve.values) for curve in read_metrics_csv(folder / METRICS)}
    else:
        need("tensorboard", extra="tensorboard", what="A folder of TensorBoard's logger")
        reader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
        events = reader.EventAccumulator(str(folder))
        events.Reload()
        points = {name: events.Scalars(name) for name in events.Tags()["scalars"]}
        logged = {name: ([e.step for e in some], [e.value for e in some]) for name, some in points.items()}
    row[LAST_STEP] = max((steps[-1] for name, (steps, _) in logged.items() if not is_of_test(name)), default=None)
    row[metric] = logged[metric][1][-1] if metric in logged else None
    return row


class _PlainLoader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Reads what a logger wrote of objects as lists, mappings and text, and makes none of them."""


def _plain_object(loader: Any, tag: str, node: Any) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_mapping(node, deep=True) if isinstance(node, yaml.MappingNode) else f"{tag} {node.value}"


_PlainLoader.add_multi_constructor("tag:yaml.org,2002:python/", _plain_object)


def _plain_yaml(path: Path) -> Any:
    try:
        return _PlainLoader(path.read_text(encoding="utf-8")).get_single_data()
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"{str(path)!r} cannot be read as settings: {message_of(error)[:300]}.") from error
