"""What a folder with a run's log holds, as far as loggers wrote it: curves, hyper-parameters, texts, exported files."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lit_gelu.errors import LitGeluError
from lit_gelu.report.content import LoggedCurve, SwapChange, SwapEvent
from lit_gelu.report.errors import ReportSourceError
from lit_gelu.report.logged_values import from_event_files, from_metrics_csv
from lit_gelu.report.setting_text import flat

METRICS, HYPER_PARAMETERS, EVENTS = "metrics.csv", "hparams.yaml", "events.out.tfevents.*"
_CONFIGURATIONS = {HYPER_PARAMETERS: "Hyper-parameters", "config.yaml": "Configuration of lit-gelu fit"}
_DEPTH = 4  # folders below the given one that are looked through
_MOST_FILES = 5000
_LARGEST_YAML = 4 * 2**20
_SWAP, _STEP = "activation_swap/", "step_"


@dataclass(frozen=True)
class LogFolder:
    """What was found in a folder."""

    curves: tuple[LoggedCurve, ...] = ()
    configuration: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    swaps: tuple[SwapEvent, ...] = ()  # as texts that were logged say
    onnx_files: tuple[Path, ...] = ()
    checkpoints: tuple[Path, ...] = ()  # the newest first
    missing: tuple[str, ...] = ()


def read_log_folder(folder: str | os.PathLike[str]) -> LogFolder:
    """Read a folder that Lightning's CSVLogger or TensorBoardLogger wrote, or one above it that holds one run.

    Args:
        folder: Such as ``lightning_logs/version_0``.

    Returns:
        What it holds, and in plain words what it lacks.

    Raises:
        ReportSourceError: If it cannot be read, holds several runs, or nothing of a run.
    """
    top = Path(folder)
    files = _files(top)
    logs = sorted({path.parent for path in files if path.name == METRICS or path.match(EVENTS)})
    if len(logs) > 1 and top not in logs:
        names = ", ".join(repr(str(path)) for path in logs[:5]) + (", ..." if len(logs) > 5 else "")
        raise ReportSourceError(f"{str(top)!r} holds the logs of {len(logs)} runs. Give one of them: {names}.")
    log = top if top in logs else logs[0] if logs else None
    of_kind = {kind: tuple(path for path in files if path.suffix == kind) for kind in (".onnx", ".ckpt")}
    if log is None and not any(of_kind.values()):
        raise ReportSourceError(
            f"{str(top)!r} holds nothing of a run: no {METRICS}, no event files of TensorBoard, no checkpoint, no ONNX "
            "file. Give the folder of a logger, such as lightning_logs/version_0, or a checkpoint."
        )
    missing: list[str] = []
    curves, texts = _curves(log, missing)
    configuration, logged = _configuration(log or top, missing)
    return LogFolder(
        curves,
        configuration,
        swaps_in(logged | texts),
        of_kind[".onnx"],
        tuple(sorted(of_kind[".ckpt"], key=_age, reverse=True)),
        tuple(missing),
    )


def swaps_in(texts: Mapping[str, str]) -> tuple[SwapEvent, ...]:
    """Return the swaps that `ActivationSwap` logged: ``activation_swap/step_<step>/<site>`` = "old -> new".

    Example:
        >>> swaps_in({"activation_swap/step_40/net.1": "relu -> gelu"})[0].changes
        (SwapChange(site='net.1', old='relu', new='gelu'),)
    """
    found: dict[int, list[SwapChange]] = {}
    for name, text in texts.items():
        number, slash, site = name.removeprefix(f"{_SWAP}{_STEP}").partition("/")
        old, arrow, new = text.partition(" -> ")
        if name.startswith(f"{_SWAP}{_STEP}") and slash and arrow and number.isdecimal() and len(number) < 18:
            found.setdefault(int(number), []).append(SwapChange(site, old, new))
    return tuple(SwapEvent(step, None, tuple(changes)) for step, changes in sorted(found.items()))


def _files(top: Path) -> list[Path]:
    """Return the files in a folder and some levels below, hidden folders and links aside."""
    if not top.is_dir():
        raise ReportSourceError(f"{str(top)!r} is no folder. Give the folder of a logger, or a checkpoint.")
    found: list[Path] = []

    def refuse(error: OSError) -> None:
        if error.filename in {str(top), top}:
            raise ReportSourceError(f"{str(top)!r} cannot be read: {error.strerror}.") from error

    for place, folders, names in os.walk(top, onerror=refuse):
        depth = len(Path(place).relative_to(top).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and depth < _DEPTH)
        found += [Path(place) / name for name in sorted(names)]
        if len(found) > _MOST_FILES:
            raise ReportSourceError(
                f"{str(top)!r} holds more than {_MOST_FILES:,} files: it is no folder of one run. Give that of a "
                "logger, such as lightning_logs/version_0."
            )
    return found


def _age(path: Path) -> float:
    """Return when a file was written; 0 if it is not there any more."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _curves(log: Path | None, missing: list[str]) -> tuple[tuple[LoggedCurve, ...], dict[str, str]]:
    """Return curves and texts of both loggers; say what there is not."""
    curves: dict[str, LoggedCurve] = {}
    texts: dict[str, str] = {}
    if log is not None and any(log.glob(EVENTS)):
        try:
            read, texts = from_event_files(log)
            curves |= {curve.name: curve for curve in read}
        except LitGeluError as error:
            missing.append(str(error))
    if log is not None and (log / METRICS).is_file():
        try:
            curves |= {curve.name: curve for curve in from_metrics_csv(log / METRICS)}
        except ReportSourceError as error:
            missing.append(str(error))
    if not curves:
        missing.append(
            "Curves: no logged values were found. Give the Trainer a CSVLogger or TensorBoardLogger, or "
            "callbacks=[RunReport()], which needs no logger."
        )
    return tuple(curves.values()), texts


def _configuration(log: Path, missing: list[str]) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return the groups of settings, and the texts that were logged as hyper-parameters."""
    groups: dict[str, dict[str, str]] = {}
    logged: dict[str, str] = {}
    for name, title in _CONFIGURATIONS.items():
        file = log / name
        if not file.is_file():
            continue
        try:
            values = _plain_yaml(file)
        except ReportSourceError as error:
            missing.append(str(error))
            continue
        texts = {key: text for key, text in _strings(values) if key.startswith((_SWAP, "curvature/"))}
        logged |= texts
        groups[title] = flat({key: value for key, value in values.items() if key not in texts})
    return groups, logged


def _strings(values: Mapping[Any, Any]) -> Iterable[tuple[str, str]]:
    return ((key, value) for key, value in values.items() if isinstance(key, str) and isinstance(value, str))


def _plain_yaml(file: Path) -> Mapping[Any, Any]:
    """Return the values of a YAML file that holds plain data alone."""
    try:
        if file.stat().st_size > _LARGEST_YAML:
            raise ReportSourceError(f"{file.name} is larger than {_LARGEST_YAML:,} bytes and was not read.")
        values = yaml.safe_load(file.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError, TypeError, AttributeError) as error:
        if isinstance(error, ReportSourceError):
            raise
        reason = " ".join(str(error).split())[:200]
        raise ReportSourceError(f"{file.name} is no YAML of plain data and was not read: {reason}") from error
    return values if isinstance(values, Mapping) else {}
