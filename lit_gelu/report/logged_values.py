"""Logged values as curves: gathered step by step, or read from what Lightning's loggers wrote."""

import csv
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lit_gelu.extras import need
from lit_gelu.report.content import CurveSummary, LoggedCurve
from lit_gelu.report.errors import ReportSourceError

MOST_POINTS = 1000
"""Of one curve on a page: a picture shows no more."""

MOST_SITE_POINTS = 120
"""Of a statistic of an activation, of which there are many."""

SITE_PREFIX = "curvature/"
_READER = "tensorboard.backend.event_processing.event_accumulator"


class CurveCollection:
    """Curves that grow while a run goes on; a curve that gets long is halved in number, so memory stays bounded."""

    def __init__(self, most_points: int = 2 * MOST_POINTS) -> None:
        self._most = most_points
        self._points: dict[str, dict[int, float]] = {}
        self._stride: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._latest: dict[str, tuple[int, float]] = {}
        self._before: dict[str, CurveSummary] = {}  # of what came before the latest, which may yet be logged again

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Take in what was logged at a step; the last value of a step stays."""
        for name, value in values.items():
            before = self._latest.get(name)
            if before is not None and before[0] != step:
                self._before[name] = self._before.get(name, CurveSummary()).with_value(*before)
            self._latest[name] = (step, value)
            points = self._points.setdefault(name, {})
            if step not in points:
                seen = self._seen[name] = self._seen.get(name, 0) + 1
                if (seen - 1) % self._stride.get(name, 1):
                    continue
            points[step] = value
            if len(points) > self._most:
                self._points[name] = dict(list(points.items())[::2])
                self._stride[name] = 2 * self._stride.get(name, 1)

    def curves(self) -> tuple[LoggedCurve, ...]:
        """Return all curves, thinned out for a page, in the order in which they began."""
        return tuple(
            thinned(
                LoggedCurve(name, *_columns(points | dict([self._latest[name]])), self._whole(name)),
                most_points_of(name),
            )
            for name, points in self._points.items()
        )

    def _whole(self, name: str) -> CurveSummary | None:
        """Return the summary of a curve of which some points were left out."""
        if self._stride.get(name, 1) == 1:
            return None
        return self._before.get(name, CurveSummary()).with_value(*self._latest[name])


def most_points_of(name: str) -> int:
    """Return how many points of a curve a page keeps."""
    return MOST_SITE_POINTS if is_of_site(name) else MOST_POINTS


def is_of_site(name: str) -> bool:
    """Return whether a name is one of `lit_gelu.callbacks.ActivationCurvatureMonitor`."""
    parts = name.split("/")
    return name.startswith(SITE_PREFIX) and len(parts) > 2 and parts[-1] in site_statistics()


def site_statistics() -> frozenset[str]:
    """Return the names of the statistics of an activation."""
    from lit_gelu.curvature import STATISTICS

    return frozenset({*STATISTICS, "share_dead", "curvature"})


def thinned(curve: LoggedCurve, most: int) -> LoggedCurve:
    """Return a curve with at most so many points: evenly spaced ones, the first and the last among them.

    Example:
        >>> thinned(LoggedCurve("loss", tuple(range(9)), tuple(map(float, range(9)))), 3).steps
        (0, 4, 8)
    """
    count = len(curve.steps)
    if count <= most:
        return curve
    places = [round(i * (count - 1) / (most - 1)) for i in range(most)]
    return LoggedCurve(
        curve.name, tuple(curve.steps[i] for i in places), tuple(curve.values[i] for i in places), curve.summary
    )


def from_metrics_csv(path: str | os.PathLike[str]) -> tuple[LoggedCurve, ...]:
    r"""Read the ``metrics.csv`` of Lightning's `CSVLogger`.

    Args:
        path: The file. Cells that are empty or no numbers are left out, as is a last line that is cut off.

    Returns:
        A curve a column, ``step`` aside; ``epoch`` is one of them.

    Raises:
        ReportSourceError: If it cannot be read or has no column ``step``.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "metrics.csv"
        >>> _ = file.write_text("epoch,step,train_loss\n0,0,2.5\n0,1,nan\n")
        >>> from_metrics_csv(file)[1]
        LoggedCurve(name='train_loss', steps=(0, 1), values=(2.5, nan))
    """
    try:
        with Path(path).open(encoding="utf-8", errors="replace", newline="") as file:
            columns = _columns_of(file)
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ReportSourceError(f"{str(path)!r} cannot be read as a table of values: {reason}.") from error
    if columns is None:
        raise ReportSourceError(f"{str(path)!r} has no column 'step': it is no metrics.csv of a CSVLogger.")
    return _as_curves(columns)


def _columns_of(file: Iterable[str]) -> dict[str, dict[int, float]] | None:
    """Return the numbers of a table by column and step; ``None`` if it has no steps."""
    rows = csv.DictReader(file)
    if "step" not in (rows.fieldnames or ()):
        return None
    columns: dict[str, dict[int, float]] = {}
    for row in rows:
        step = _step(row.get("step"))
        if step is not None:
            _add_row(columns, step, row)
    return columns


def from_event_files(folder: str | os.PathLike[str]) -> tuple[tuple[LoggedCurve, ...], dict[str, str]]:
    """Read the scalars and texts of TensorBoard's event files in a folder.

    Args:
        folder: Where files called ``events.out.tfevents.*`` are.

    Returns:
        A curve a tag, and the last text of each tag of texts.

    Raises:
        MissingExtraError: If the package tensorboard is not installed.
        ReportSourceError: If the files cannot be read.
    """
    reader = need(_READER, extra="tensorboard", what=f"Reading TensorBoard's event files in {str(folder)!r}")
    limits = {"scalars": 0, "tensors": 1000, "images": 1, "audio": 1, "histograms": 1, "compressedHistograms": 1}
    try:
        events = reader.EventAccumulator(str(folder), size_guidance=limits)
        events.Reload()
        tags = events.Tags()
        scalars = {tag: {e.step: float(e.value) for e in events.Scalars(tag)} for tag in tags["scalars"]}
        texts = {tag: _text_of(events, tag) for tag in tags["tensors"]}
    except Exception as error:  # damaged protocol buffers may raise anything in tensorboard
        raise ReportSourceError(
            f"TensorBoard's event files in {str(folder)!r} cannot be read: {type(error).__name__}: {str(error)[:200]}."
        ) from error
    return _as_curves(scalars), {tag.removesuffix("/text_summary"): text for tag, text in texts.items() if text}


def _text_of(events: Any, tag: str) -> str:
    """Return the last text of a tag; empty if it holds no text."""
    values = events.Tensors(tag)[-1].tensor_proto.string_val
    return bytes(values[0]).decode("utf-8", "replace") if values else ""


def _columns(points: Mapping[int, float]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return points as steps and values, in the order of the steps."""
    steps = tuple(sorted(points))
    return steps, tuple(points[step] for step in steps)


def _as_curves(columns: Mapping[str, Mapping[int, float]]) -> tuple[LoggedCurve, ...]:
    """Return columns that have values as curves, thinned out for a page."""
    curves = (LoggedCurve(name, *_columns(points)) for name, points in columns.items() if points)
    return tuple(thinned(curve, most_points_of(curve.name)) for curve in curves)


def _step(text: Any) -> int | None:
    """Return the number of a step; ``None`` for anything else."""
    try:
        step = int(text)
    except (TypeError, ValueError):
        return None
    return step if 0 <= step < 2**62 else None


def _add_row(columns: dict[str, dict[int, float]], step: int, row: Mapping[Any, Any]) -> None:
    """Take the numbers of a row; the last value of a step stays."""
    for name, text in row.items():
        if isinstance(name, str) and name != "step" and isinstance(text, str) and text:
            try:
                columns.setdefault(name, {})[step] = float(text)
            except ValueError:
                continue


def last_values(curves: Iterable[LoggedCurve]) -> dict[str, float]:
    """Return the last value of each curve."""
    return {curve.name: curve.values[-1] for curve in curves if curve.values}
