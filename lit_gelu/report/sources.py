"""What a run leaves behind: logged values, hyper-parameters, exported files. All of it is read, and nothing is run."""

import csv
import importlib.metadata
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import yaml

from lit_gelu.errors import ArgumentError, DataError, LitGeluError, message_of
from lit_gelu.report.content import ExportedFile, LoggedCurve, ReportedRun, SwapChange, SwapEvent, flat

METRICS = "metrics.csv"
_SWAPS = "activation_swap/step_"
_CONFIGURATIONS = {"hparams.yaml": "Hyper-parameters", "config.yaml": "Configuration of lit-gelu fit"}
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
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            rows = csv.DictReader(file)
            if "step" not in (rows.fieldnames or ()):
                raise DataError(f"{str(path)!r} has no column 'step': it is no metrics.csv of a CSVLogger.")
            for row in rows:
                with suppress(TypeError, ValueError):  # a line that is cut off
                    recorder.add(int(row.pop("step")), dict(_numbers(row)))
    except (OSError, csv.Error) as error:
        raise DataError(f"{str(path)!r} cannot be read as a table of values: {error}.") from error
    return recorder.curves()


def _numbers(row: Mapping[str, str | None]) -> Iterator[tuple[str, float]]:
    for name, text in row.items():
        with suppress(TypeError, ValueError):
            yield name, float(text or "")


def is_of_test(name: str) -> bool:
    """Return whether a curve is of ``Trainer.test``, which logs at the step behind the last, or counts epochs alone."""
    return name == "epoch" or name.rpartition("/")[2].startswith("test")


def read_log_folder(folder: str | os.PathLike[str]) -> ReportedRun:
    """Read what Lightning's `CSVLogger` wrote of a run, and the ONNX files that lie beside that."""
    top = Path(folder)
    logs, onnx_files = sorted(top.rglob(METRICS)), sorted(top.rglob("*.onnx"))
    log = top / METRICS
    if log not in logs and len(logs) > 1:
        names = ", ".join(repr(str(path.parent)) for path in logs[:5])
        raise ArgumentError(f"{str(top)!r} holds the logs of {len(logs)} runs. Give one of them: {names}.")
    if not (logs or onnx_files):
        raise ArgumentError(
            f"{str(top)!r} is no folder with a run: there is no {METRICS} and no ONNX file. Give the folder of a "
            "CSVLogger, such as lightning_logs/version_0. The callback RunReport needs no logger."
        )
    if log not in logs and logs:
        log = logs[0]
    curves = read_metrics_csv(log) if logs else ()
    missing: list[str] = []
    texts = {title: _plain_yaml(log.with_name(name), missing) for name, title in _CONFIGURATIONS.items()}
    swaps = {name: text for settings in texts.values() for name, text in settings.items() if name.startswith(_SWAPS)}
    configuration = {
        title: {name: text for name, text in settings.items() if name not in swaps}
        for title, settings in texts.items()
        if settings.keys() - swaps.keys()
    }
    if not any(curve.name.startswith("curvature/") for curve in curves):
        missing.append(
            "Curvature: it was not logged. ActivationCurvatureMonitor() and LossCurvatureMonitor() measure it."
        )
    missing.append("Optimizer, activations, status: a log does not hold them. The callback RunReport records them.")
    return ReportedRun(
        title=top.resolve().name,
        source=f"the folder {top.resolve().name}",
        made=now(),
        steps=max((curve.steps[-1] + 1 for curve in curves if not is_of_test(curve.name)), default=None),
        configuration=configuration,
        curves=curves,
        swaps=swaps_in(swaps),
        files=tuple(map(exported_file, onnx_files)),
        environment=environment(),
        missing=tuple(missing),
    )


def swaps_in(texts: Mapping[str, str]) -> tuple[SwapEvent, ...]:
    """Return the swaps that `ActivationSwap` logged: ``activation_swap/step_<step>/<site>`` = "old -> new"."""
    swaps: dict[int, list[SwapChange]] = {}
    for name, text in texts.items():
        step, _, site = name.removeprefix(_SWAPS).partition("/")
        old, arrow, new = text.partition(" -> ")
        if arrow and step.isdecimal():
            swaps.setdefault(int(step), []).append(SwapChange(site, old, new))
    return tuple(SwapEvent(step, None, tuple(changes)) for step, changes in sorted(swaps.items()))


def _plain_yaml(file: Path, missing: list[str]) -> dict[str, str]:
    try:
        return flat(yaml.safe_load(file.read_text(encoding="utf-8", errors="replace"))) if file.is_file() else {}
    except yaml.YAMLError as error:
        missing.append(f"{file.name} was not read as YAML of plain data: {message_of(error)[:300]}")
        return {}


def exported_file(path: str | os.PathLike[str]) -> ExportedFile:
    """Say what an ONNX file is and whether it was compared with PyTorch; nothing is run."""
    from lit_gelu.export.inspection import inspect_onnx

    file = Path(path)
    try:
        inspection = inspect_onnx(file)
    except LitGeluError as error:
        return ExportedFile(file.name, file.stat().st_size if file.is_file() else 0, "unreadable", trouble=str(error))
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

    from lit_gelu.export.runtime.bench import cores, processor

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    facts = {
        "Python": platform.python_version(),
        "System": f"{platform.system()} {platform.machine()}",
        "Processor": f"{processor()}, {cores()} cores",
        "GPU": f"{', '.join(gpus)} (CUDA {torch.version.cuda})" if gpus else "none that torch can use",
    }
    installed = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
    return facts | {name: installed[name] for name in _DISTRIBUTIONS if name in installed}


def now() -> str:
    """Return the time as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
