"""What a run leaves behind: logged values, hyper-parameters, exported files. All of it is read, and nothing is run."""

import csv
import importlib.metadata
import os
import platform
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from lit_gelu.errors import ArgumentError, DataError, LitGeluError, message_of
from lit_gelu.files import is_folder
from lit_gelu.report.content import ExportedFile, LoggedCurve, ReportedRun, SwapChange, SwapEvent, flat

METRICS = "metrics.csv"
OF_FOLDER = "the folder"
_CONFIGURATIONS = {"hparams.yaml": "Hyper-parameters", "config.yaml": "Configuration of lit-gelu fit"}
_LARGEST_LOG, _LARGEST_YAML, _MOST_CURVES, _MOST_FILES = 32_000_000, 1_000_000, 2000, 20  # half a minute
_DISTRIBUTIONS = ("lit-gelu", "torch", "lightning", "torchmetrics", "onnx", "onnxruntime", "onnxruntime-gpu")


class CurveRecorder:
    """Curves that grow while a run goes on; the last value of a step stays."""

    def __init__(self) -> None:
        self._points: dict[str, dict[int, float]] = {}

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Take in what was logged at a step."""
        for name, value in values.items():
            self._points.setdefault(name, {})[step] = value

    def curves(self) -> tuple[LoggedCurve, ...]:
        """Return all curves, in the order in which they began."""
        rising = {name: sorted(points.items()) for name, points in self._points.items()}
        return tuple(
            LoggedCurve(name, tuple(step for step, _ in points), tuple(value for _, value in points))
            for name, points in rising.items()
        )


def read_metrics_csv(path: Path) -> tuple[LoggedCurve, ...]:
    """Read the ``metrics.csv`` of Lightning's `CSVLogger`, a curve a column; cells that are no numbers are left out."""
    recorder = CurveRecorder()
    try:
        _require_few(path.stat().st_size, _LARGEST_LOG, "bytes", path)
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            rows = csv.DictReader(file)
            if "step" not in (rows.fieldnames or ()):
                raise DataError(f"{str(path)!r} has no column 'step': it is no metrics.csv of a CSVLogger.")
            _require_few(len(rows.fieldnames or ()), _MOST_CURVES, "columns", path)
            for row in rows:
                step = _number(row.pop("step"), int)
                if step is not None and 0 <= step < 2**62:
                    values = {name: _number(text, float) for name, text in row.items() if isinstance(name, str)}
                    recorder.add(step, {name: value for name, value in values.items() if value is not None})
    except (OSError, csv.Error) as error:
        raise DataError(f"{str(path)!r} cannot be read as a table of values: {error}.") from error
    return recorder.curves()


def _require_few(count: int, most: int, what: str, path: Path) -> None:
    if count > most:
        raise DataError(f"{str(path)!r} has {count:,} {what}, a page takes {most:,}: log less, or use RunReport.")


def _number(text: Any, kind: Any) -> Any:
    try:
        return kind(text)
    except (TypeError, ValueError):
        return None


def read_log_folder(folder: str | os.PathLike[str]) -> ReportedRun:
    """Read what Lightning's `CSVLogger` wrote of a run, and the ONNX files that lie beside that."""
    top = Path(folder)
    if not is_folder(top) or not os.access(top, os.R_OK | os.X_OK):
        raise ArgumentError(f"{str(top)[:200]!r} is no folder that can be read. Give the folder of a logger.")
    # Three levels deep, what is hidden aside.
    paths = [path for depth in range(1, 5) for path in sorted(top.glob("/".join(["[!.]*"] * depth))) if path.is_file()]
    logs = [path.parent for path in paths if path.name == METRICS]
    onnx_files = [path for path in paths if path.suffix == ".onnx"]
    if len(logs) > 1 and top not in logs:
        names = ", ".join(repr(str(path)) for path in logs[:5])
        raise ArgumentError(f"{str(top)!r} holds the logs of {len(logs)} runs. Give one of them: {names}.")
    if not (logs or onnx_files):
        raise ArgumentError(
            f"{str(top)!r} holds nothing of a run: no {METRICS} and no ONNX file. Give the folder of a CSVLogger, such "
            "as lightning_logs/version_0. The callback RunReport needs no logger."
        )
    log = top if top in logs or not logs else logs[0]
    curves: tuple[LoggedCurve, ...] = ()
    missing: list[str] = []
    if logs:
        try:
            curves = read_metrics_csv(log / METRICS)
        except DataError as error:
            missing.append(str(error))
    swaps: dict[str, str] = {}
    configuration = {}
    for name, title in _CONFIGURATIONS.items():
        settings = _plain_yaml(log / name, missing)
        swaps |= {key: text for key, text in settings.items() if key.startswith("activation_swap/")}
        configuration[title] = {key: text for key, text in settings.items() if key not in swaps}
    if not curves:
        missing.append("Curves: no logged values were found. Give the Trainer a CSVLogger, or callbacks=[RunReport()].")
    elif not any(curve.name.startswith("curvature/") for curve in curves):
        missing.append(
            "Curvature: it was not logged. ActivationCurvatureMonitor() and LossCurvatureMonitor() measure it."
        )
    if len(onnx_files) > _MOST_FILES:
        missing.append(f"{len(onnx_files) - _MOST_FILES} more ONNX files: a page shows {_MOST_FILES}.")
    missing.append("Optimizer, activations, status: a log does not hold them. The callback RunReport records them.")
    return ReportedRun(
        title=top.resolve().name,
        source=f"{OF_FOLDER} {top.resolve().name}",
        made=now(),
        steps=max((curve.steps[-1] + 1 for curve in curves), default=None),
        configuration={title: settings for title, settings in configuration.items() if settings},
        curves=curves,
        swaps=swaps_in(swaps),
        files=tuple(exported_file(path) for path in onnx_files[:_MOST_FILES]),
        environment=environment(),
        missing=tuple(missing),
    )


def swaps_in(texts: Mapping[str, str]) -> tuple[SwapEvent, ...]:
    """Return the swaps that `ActivationSwap` logged: ``activation_swap/step_<step>/<site>`` = "old -> new"."""
    swaps: dict[int, list[SwapChange]] = {}
    for name, text in texts.items():
        step, _, site = name.removeprefix("activation_swap/step_").partition("/")
        old, arrow, new = text.partition(" -> ")
        if arrow and step.isdecimal() and len(step) < 18:
            swaps.setdefault(int(step), []).append(SwapChange(site, old, new))
    return tuple(SwapEvent(step, None, tuple(changes)) for step, changes in sorted(swaps.items()))


def _plain_yaml(file: Path, missing: list[str]) -> dict[str, str]:
    """Return the values of a YAML file that holds plain data alone, as text; what cannot be read is missing."""
    if not file.is_file():
        return {}
    try:
        _require_few(file.stat().st_size, _LARGEST_YAML, "bytes", file)
        values = yaml.safe_load(file.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError, TypeError, AttributeError) as error:
        missing.append(f"{file.name} was not read as YAML of plain data: {message_of(error)[:300]}")
        return {}
    return flat(values) if isinstance(values, Mapping) and values else {}


def exported_file(path: str | os.PathLike[str]) -> ExportedFile:
    """Say what an ONNX file is and whether it was compared with PyTorch; nothing is run."""
    from lit_gelu.export.inspection import inspect_onnx

    file = Path(path)
    try:
        inspection = inspect_onnx(file)
    except LitGeluError as error:
        size = file.stat().st_size if file.is_file() else 0
        return ExportedFile(file.name, size, "unreadable", trouble=str(error))
    opset, metadata = inspection.opsets.get("", 0), inspection.metadata
    exported = ExportedFile(file.name, inspection.size, opset=opset, activations=inspection.activations)
    if metadata is None:
        return exported
    passed, largest = metadata.parity.get("passed"), metadata.parity.get("max_relative_error")
    return replace(
        exported,
        proof="passed" if passed is True else "failed" if passed is False else "none",
        written_as=", ".join(str(part) for part in (metadata.dtype, metadata.approximate, metadata.target) if part),
        largest_error=largest if isinstance(largest, float) else None,
        provider=str(metadata.parity.get("provider", ""))[:200],
    )


def environment() -> dict[str, str]:
    """Return what of this machine and installation a reader of results needs."""
    import torch

    from lit_gelu.export.runtime.tuning_file import cores, processor

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    facts = {
        "Python": platform.python_version(),
        "System": f"{platform.system()} {platform.machine()}",
        "Processor": f"{processor()}, {cores()} cores",
        "GPU": f"{', '.join(gpus)} (CUDA {torch.version.cuda})" if gpus else "none that torch can use",
    }
    installed = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
    facts |= {name: installed[name] for name in _DISTRIBUTIONS if name in installed}
    return facts


def now() -> str:
    """Return the time as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
